/** The value that a standard normal number is below with the probability p (Acklam's rational approximation, relative error 1e-9). */
function normalQuantile(p: number): number {
  if (p > 0.5) return -normalQuantile(1 - p);
  if (p < tail) {
    const q = Math.sqrt(-2 * Math.log(p));
    return polynomial(tailTop, q) / (q * polynomial(tailBottom, q) + 1);
  }
  const q = p - 0.5;
  return (q * polynomial(middleTop, q * q)) / (q * q * polynomial(middleBottom, q * q) + 1);
}

/**
 * Quantile of Student's t with 9 degrees of freedom or more (Cornish and Fisher's expansion; Abramowitz and Stegun,
 * 26.7.5).
 */
export function studentQuantile(p: number, degrees: number): number {
  const z = normalQuantile(p);
  const terms = [
    z,
    (z ** 3 + z) / 4,
    (5 * z ** 5 + 16 * z ** 3 + 3 * z) / 96,
    (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / 384,
    (79 * z ** 9 + 776 * z ** 7 + 1482 * z ** 5 - 1920 * z ** 3 - 945 * z) / 92_160,
  ];
  return terms.reduce((sum, term, i) => sum + term / degrees ** i, 0);
}

/** Coefficients start with the highest power. */
function polynomial(coefficients: readonly number[], x: number): number {
  return coefficients.reduce((sum, coefficient) => sum * x + coefficient, 0);
}

/** Below this probability the approximation of the tail applies. */
const tail = 0.02425;
const middleTop = [
  -39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716, 2.506628277459239,
];
const middleBottom = [-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572];
const tailTop = [
  -0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968,
  2.938163982698783,
];
const tailBottom = [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416];
