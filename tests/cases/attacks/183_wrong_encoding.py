# coding: utf-7
+AGQ-ef solve(x): return 0
