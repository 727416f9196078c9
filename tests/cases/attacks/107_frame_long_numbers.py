from code_inside.frames import send_frame
import os
send_frame(['loaded'])
for _ in range(3): send_frame(['value',['f','0x1.'+'0'*200000+'p1']])
send_frame(['value',['i','f'*300000]])
os._exit(0)
