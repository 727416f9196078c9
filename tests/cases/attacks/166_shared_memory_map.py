def attempt():
    import mmap
    m=[mmap.mmap(-1,1<<28) for _ in range(8)]
    return 'mapped 2 GiB'
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
