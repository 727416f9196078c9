def attempt():
    total=0
    for i in range(200):
        with open('/tmp/f%d'%i,'wb') as f:
            for _ in range(16): total+=f.write(bytes(1<<20))
    return total
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
