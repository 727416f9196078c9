def attempt():
    import os,stat
    for p in ('/dev/mem','/dev/kmsg','/dev/shm','/dev/tty','/dev/vda','/dev/kvm','/dev/fuse','/proc','/sys','/run'):
        if os.path.exists(p): return p
    for kind in (stat.S_IFBLK,stat.S_IFCHR):
        try:
            os.mknod('/tmp/d%d'%kind,kind|0o600,os.makedev(1,1)); return 'mknod'
        except OSError: pass
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
