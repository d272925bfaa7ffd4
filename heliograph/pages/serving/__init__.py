"""How a request becomes a page: parsed (`receiving`), authenticated again (`proving`), processed step by step
(`application`), rendered (`rendering`), recorded (`recording`).
"""
