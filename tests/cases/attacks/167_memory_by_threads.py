import threading
def eat():
    x=[]
    while True: x.append(bytearray(1<<20))
t=[threading.Thread(target=eat) for _ in range(16)]
for i in t: i.start()
for i in t: i.join()
raise MemoryError
