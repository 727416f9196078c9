def attempt():
    import ctypes
    libc=ctypes.CDLL(None,use_errno=True)

    import os
    for flags in (0x10000000|17, 0x20000000|17, 17, 0x100|17, 0x4000|0x100|17):
        r=libc.syscall(56,flags,0,0,0,0)
        if r==0: os._exit(0)
        if r>0: return 'process %d'%r
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
