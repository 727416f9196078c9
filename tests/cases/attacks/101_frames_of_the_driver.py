import os
from code_inside.frames import send_frame
send_frame(['loaded'])
for _ in range(6): send_frame(['value',['B',1]])
os._exit(0)
