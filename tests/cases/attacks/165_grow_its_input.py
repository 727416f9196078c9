def attempt():
    import os
    for action in (lambda: os.write(0,b'x'),lambda: os.ftruncate(0,1<<30)):
        try:
            action(); return 'changed'
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
