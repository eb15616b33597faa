/** Problems of arithmetic, number theory and counting, with exact answers; a few lines of Python find each. */

export interface Problem {
  readonly question: string;
  /** A whole number, or `p/q` in lowest terms. */
  readonly answer: string;
  /** Python code whose last expression is the answer. */
  readonly code: string;
}

export const difficulties = ['easy', 'medium', 'hard'] as const;
type Difficulty = (typeof difficulties)[number];

type Draw = (from: number, to: number) => number;

/** One problem of a difficulty, its kind and its numbers drawn from `random`. */
export function makeProblem(difficulty: Difficulty, random: () => number): Problem {
  const draw: Draw = (from, to) => from + Math.floor(random() * (to - from + 1));
  const kinds = problemKinds[difficulty];
  return kinds[draw(0, kinds.length - 1)]!(draw);
}

const problem = (question: string, answer: number | bigint | string, code: string): Problem => ({
  question,
  answer: String(answer),
  code,
});

const problemKinds: Readonly<Record<Difficulty, readonly ((draw: Draw) => Problem)[]>> = {
  easy: [
    (draw) => {
      const [a, b, c, d] = [draw(11, 99), draw(11, 99), draw(11, 99), draw(11, 99)];
      return problem(`What is ${a} * ${b} + ${c} * ${d}?`, a * b + c * d, `${a} * ${b} + ${c} * ${d}`);
    },
    (draw) => {
      const [a, b] = [draw(40, 999), draw(40, 999)];
      return problem(
        `What is the greatest common divisor of ${a} and ${b}?`,
        gcd(a, b),
        `import math\nmath.gcd(${a}, ${b})`,
      );
    },
    (draw) => {
      const [a, b, m] = [draw(3, 40), draw(5, 30), draw(7, 97)];
      return problem(
        `What is the remainder of ${a}^${b} divided by ${m}?`,
        powerModulo(a, b, m),
        `pow(${a}, ${b}, ${m})`,
      );
    },
    (draw) => {
      const [k, n] = [draw(3, 12), draw(50, 400)];
      const count = Math.floor((n - 1) / k);
      return problem(
        `What is the sum of the positive multiples of ${k} below ${n}?`,
        (k * count * (count + 1)) / 2,
        `sum(range(${k}, ${n}, ${k}))`,
      );
    },
  ],
  medium: [
    (draw) => {
      const n = draw(200, 20_000);
      return problem(
        `How many positive divisors does ${n} have?`,
        numbers(1, n).filter((d) => n % d === 0).length,
        `sum(1 for d in range(1, ${n} + 1) if ${n} % d == 0)`,
      );
    },
    (draw) => {
      const [n, m] = [draw(50, 500), draw(100, 9_999)];
      return problem(
        `The Fibonacci numbers begin F(1) = F(2) = 1. What is the remainder of F(${n}) divided by ${m}?`,
        fibonacci(n) % BigInt(m),
        `a, b = 0, 1\nfor _ in range(${n}):\n    a, b = b, a + b\na % ${m}`,
      );
    },
    (draw) => {
      const [a, b, n] = [draw(2, 9), draw(10, 15), draw(200, 5_000)];
      return problem(
        `How many whole numbers from 1 to ${n} are divisible by ${a} or by ${b}, but not by both?`,
        numbers(1, n).filter((i) => (i % a === 0) !== (i % b === 0)).length,
        `sum((i % ${a} == 0) != (i % ${b} == 0) for i in range(1, ${n} + 1))`,
      );
    },
    (draw) => {
      const [a, b] = [draw(2, 30), draw(20, 120)];
      return problem(
        `What is the sum of the decimal digits of ${a}^${b}?`,
        Array.from(String(BigInt(a) ** BigInt(b))).reduce((sum, digit) => sum + Number(digit), 0),
        `sum(map(int, str(${a} ** ${b})))`,
      );
    },
    (draw) => {
      const from = draw(10, 500);
      const to = from + draw(30, 300);
      return problem(
        `What is the sum of the prime numbers from ${from} to ${to}?`,
        numbers(from, to)
          .filter(isPrime)
          .reduce((sum, prime) => sum + prime, 0),
        `sum(p for p in range(${from}, ${to} + 1) if all(p % d for d in range(2, int(p ** 0.5) + 1)))`,
      );
    },
  ],
  hard: [
    (draw) => {
      const rows = numbers(1, 4).map(() => numbers(1, 4).map(() => draw(-9, 9)));
      const written = `[${rows.map((row) => `[${row.join(', ')}]`).join(', ')}]`;
      return problem(
        `What is the determinant of the matrix ${written}?`,
        determinant(rows),
        `def det(m):\n    if len(m) == 1: return m[0][0]\n    return sum((-1) ** i * m[0][i] * det([r[:i] + r[i + 1:] for r in m[1:]]) for i in range(len(m)))\ndet(${written})`,
      );
    },
    (draw) => {
      const from = draw(2, 12);
      const to = from + draw(3, 9);
      return problem(
        `What is the sum of 1/k for k from ${from} to ${to}, as a fraction in lowest terms?`,
        harmonic(from, to),
        `from fractions import Fraction\nstr(sum(Fraction(1, k) for k in range(${from}, ${to} + 1)))`,
      );
    },
    (draw) => {
      const n = draw(20, 90);
      return problem(
        `In how many ways is ${n} a sum of distinct positive whole numbers, their order not counted?`,
        distinctPartitions(n),
        `ways = [1] + [0] * ${n}\nfor part in range(1, ${n} + 1):\n    for total in range(${n}, part - 1, -1):\n        ways[total] += ways[total - part]\nways[${n}]`,
      );
    },
    (draw) => {
      const [w, h] = [draw(5, 14), draw(5, 14)];
      const [x, y] = [draw(1, w - 1), draw(1, h - 1)];
      const all = binomial(w + h, w) - binomial(x + y, x) * binomial(w + h - x - y, w - x);
      return problem(
        `How many shortest paths along the lines of a grid lead from (0, 0) to (${w}, ${h}) without passing through (${x}, ${y})?`,
        all,
        `from math import comb\ncomb(${w + h}, ${w}) - comb(${x + y}, ${x}) * comb(${w + h - x - y}, ${w - x})`,
      );
    },
    (draw) => {
      const m = draw(200, 3_000);
      let a = draw(3, m - 1);
      while (gcd(a, m) !== 1) a = (a % (m - 1)) + 1;
      const b = draw(1, m - 1);
      return problem(
        `What is the smallest positive whole number n for which ${a} * n leaves the remainder ${b} when divided by ${m}?`,
        numbers(1, m).find((n) => (a * n) % m === b)!,
        `next(n for n in range(1, ${m} + 1) if ${a} * n % ${m} == ${b})`,
      );
    },
  ],
};

function numbers(from: number, to: number): number[] {
  return Array.from({ length: to - from + 1 }, (_, i) => from + i);
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}

function powerModulo(base: number, exponent: number, modulus: number): bigint {
  return BigInt(base) ** BigInt(exponent) % BigInt(modulus);
}

function isPrime(n: number): boolean {
  return n > 1 && numbers(2, Math.floor(Math.sqrt(n))).every((d) => n % d !== 0);
}

function fibonacci(n: number): bigint {
  let [a, b] = [0n, 1n];
  for (let i = 0; i < n; i++) [a, b] = [b, a + b];
  return a;
}

/** Expansion along the first row. */
function determinant(rows: readonly (readonly number[])[]): number {
  const [first = [], ...rest] = rows;
  if (rest.length === 0) return first[0]!;
  const minor = (column: number) => rest.map((row) => row.filter((_, i) => i !== column));
  return first.reduce((sum, value, i) => sum + (i % 2 === 0 ? value : -value) * determinant(minor(i)), 0);
}

function harmonic(from: number, to: number): string {
  let [p, q] = [0n, 1n];
  for (const k of numbers(from, to).map(BigInt)) [p, q] = [p * k + q, q * k];
  const divisor = bigGcd(p, q);
  return q === divisor ? String(p / divisor) : `${p / divisor}/${q / divisor}`;
}

function bigGcd(a: bigint, b: bigint): bigint {
  return b === 0n ? a : bigGcd(b, a % b);
}

function distinctPartitions(n: number): number {
  const ways = [1, ...numbers(1, n).map(() => 0)];
  for (const part of numbers(1, n)) {
    for (let total = n; total >= part; total--) ways[total]! += ways[total - part]!;
  }
  return ways[n]!;
}

function binomial(n: number, k: number): bigint {
  let result = 1n;
  for (let i = 1; i <= k; i++) result = (result * BigInt(n - k + i)) / BigInt(i);
  return result;
}
