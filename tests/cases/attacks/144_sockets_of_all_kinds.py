def attempt():
    import ctypes
    libc=ctypes.CDLL(None,use_errno=True)
    b=ctypes.create_string_buffer(256)
    for call in [(41,f,t,0) for f in (1,2,10,16,17,38,40) for t in (1,2,3)]:
        if libc.syscall(*call)>=0: return 'syscall %d'%call[0]
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
