"""How a request becomes a page: read (`receiving`), proved (`proving`), answered step by step (`application`), made
into bytes (`rendering`), written down (`recording`).
"""
