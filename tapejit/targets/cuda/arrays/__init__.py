"""Operations on whole arrays as kernels of their own.

Start reading at `table.py`.
"""
