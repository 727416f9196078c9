def attempt():
    import ctypes
    libc=ctypes.CDLL(None,use_errno=True)

    if libc.prctl(38,0,0,0,0)==0: return 'no_new_privs off'
    if libc.prctl(22,0,0,0,0)==0 or libc.syscall(317,0,0,0)==0: return 'seccomp off'
    for o in (4,1,28,35,36):
        if libc.prctl(o,1,0,0,0)==0: return 'prctl %d'%o
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
