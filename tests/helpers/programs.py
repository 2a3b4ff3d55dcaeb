"""Rows and values for linear programs."""

import clarabel
import numpy as np
import torch
from scipy.sparse import csc_matrix

from helpers.heads import doubles, normals, seeded
from identilens.linalg import ProjectedValues
from identilens.measures.attention.row_programs import RowPrograms, stacked

# Keys at 0, 1 and 1/2 on a line: (0.2, 0.2, 0.6) has the alternatives (0.2 + t, 0.2 + t, 0.6 − 2t), |t − 0.05| <= 0.25.
LINE = [0.0, 1.0, 0.5]
LINE_ROW = doubles([0.2, 0.2, 0.6])


def kept_basis(T):
    """Orthonormal basis of [T, 1], by plain QR."""
    T = torch.as_tensor(T, dtype=torch.float64).reshape(len(T), -1)
    return torch.linalg.qr(torch.cat([torch.ones(len(T), 1, dtype=torch.float64), T], 1)).Q


def programs_of(row, T, allowed=0.0, among=None):
    """The programs over the alternatives of one row."""
    space = stacked([ProjectedValues.of(T).simplex_space()])
    return RowPrograms.of(row[None], space, row.new_tensor([allowed]), among)


def random_row(seed, n, d, sharpness):
    """A row of softmax attention, and values of n keys."""
    generator = seeded(seed)
    T = normals(generator, n, d)
    return torch.softmax(sharpness * normals(generator, n), 0), T


def by_clarabel(cost, row, values, allowed, blocks=None):
    """Least cost·x over {x >= 0, ‖(x − a) T‖ <= allowed} with the sum of every block kept, posed on T as it is.

    None where Clarabel does not solve it.
    """
    n, d = values.shape
    blocks = torch.zeros(n, dtype=torch.int64) if blocks is None else blocks
    sums = torch.nn.functional.one_hot(blocks).double().T.numpy()
    left = np.vstack([sums, -np.eye(n), np.zeros((1, n)), -values.T.numpy()])
    right = np.concatenate([sums @ row.numpy(), np.zeros(n), [allowed], -(row @ values).numpy()])
    cones = [clarabel.ZeroConeT(len(sums)), clarabel.NonnegativeConeT(n)]
    cones += [clarabel.SecondOrderConeT(d + 1)]
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
    square = csc_matrix((n, n))
    solver = clarabel.DefaultSolver(square, cost.numpy(), csc_matrix(left), right, cones, options)
    answer = solver.solve()
    return answer.obj_val if "Solved" in str(answer.status) else None
