import os
x=[]
while True: x.append(os.dup(1))
