def attempt():
    import socket
    s=socket.socket(socket.AF_UNIX)
    s.connect('\0quatrain-attack'); return s.recv(20)
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
