def attempt():
    import ctypes
    libc=ctypes.CDLL(None)
    libc.getenv.restype=ctypes.c_char_p
    for n in (b'SECRET_TOKEN',b'HOME',b'PATH',b'USER',b'LD_LIBRARY_PATH',b'PYTHONPATH'):
        if libc.getenv(n): return n
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
