def attempt():
    import os
    for p in range(2,3000):
        try:
            os.kill(p,0); return 'pid %d'%p
        except OSError: pass
    return os.getppid()
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
