"""A small treebank with everything that CoNLL-U allows."""

SENTENCES = """# sent_id = 1
# text = We cannot unbelievably  go, can't we?
1\tWe\twe\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tcannot\t_\t_\t_\t_\t_\t_\t_\t_
2\tcan\tcan\tAUX\tMD\t_\t4\taux\t_\t_
3\tnot\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tunbelievably\tx\tADV\tRB\t_\t0\troot\t_\t_
5\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
5.1\tgo\tgo\tVERB\tVBG\t_\t_\t_\t_\t_
6\t,\t,\tPUNCT\t,\t_\t4\tpunct\t_\t_
7-8\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
7\tca\tcan\tAUX\tMD\t_\t4\taux\t_\t_
8\tnot\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
9\twe\twe\tPRON\tPRP\t_\t4\tnsubj\t_\t_
10\t?\t?\tPUNCT\t.\t_\t4\tpunct\t_\t_

# sent_id = 2
# text = Gladly
1\tGladly\tgladly\tADV\tRB\t_\t0\troot\t_\t_
"""
