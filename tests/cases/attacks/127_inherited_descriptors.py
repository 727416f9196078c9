def attempt():
    import os
    for fd in range(3,1024):
        try:
            os.fstat(fd); return 'fd %d'%fd
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
