def attempt():
    import ctypes,mmap
    m=mmap.mmap(-1,4096,prot=7)
    m.write(bytes.fromhex('b829000000bf02000000be0100000031d20f05c3'))  # socket(AF_INET, SOCK_STREAM, 0)
    return ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()>=0
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
