import { z } from 'zod';

/** Numbers in answers. Infinite values stay; NaN arrives as null, and becomes NaN again. */
export const number = z.custom<number | null>(
  (value) => typeof value === 'number' || value === null,
  'expected a number',
);
export const numbers = z.array(number.transform((value) => value ?? Number.NaN));
export const metrics = z.record(
  z.string(),
  number.transform((value) => value ?? Number.NaN),
);
