def attempt():
    import ctypes
    libc=ctypes.CDLL(None,use_errno=True)
    import os
    for n in (57,):
        r=libc.syscall(n)
        if r==0: os._exit(0)
        if r>0: return 'process'
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
