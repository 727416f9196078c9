def attempt():
    import ctypes
    libc=ctypes.CDLL(None,use_errno=True)
    b=ctypes.create_string_buffer(256)
    for call in [(135,0x0040000)]:
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
