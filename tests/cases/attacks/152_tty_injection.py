def attempt():
    import fcntl
    for fd in (0,1,2):
        try:
            fcntl.ioctl(fd,0x5412,b'x'); return 'TIOCSTI'
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
