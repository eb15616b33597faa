import type { Random } from './damages.ts';

/** One bad input, and what is known of the answer to it. See `part-child.ts`. */
export interface BadCase {
  readonly what: string;
  /** One of these says where, in a refusal. */
  readonly names?: readonly string[];
  /** A refusal matches each of these. */
  readonly wanted?: readonly RegExp[];
  readonly mustRefuse?: boolean;
  /** How long it may take; missing = as long as a command. */
  readonly boundMs?: number;
  /** Returns a description of what was accepted. Throws the refusal, or {@link WronglyTaken}. */
  run(): Promise<string> | string;
}

/** The input was accepted, and what came of it cannot be right. */
export class WronglyTaken extends Error {}

/** The same cases for the same random numbers: the process that asks and the one that does them both draw. */
export type Cases = (random: Random) => readonly BadCase[];

export const partNames = ['workflows', 'answers', 'templates'] as const;
export type PartName = (typeof partNames)[number];

export async function casesOf(part: PartName, random: Random): Promise<readonly BadCase[]> {
  switch (part) {
    case 'workflows':
      return (await import('./workflow-cases.ts')).workflowCases(random);
    case 'answers':
      return (await import('./answer-cases.ts')).answerCases(random);
    case 'templates':
      return (await import('./template-cases.ts')).templateCases();
    default:
      return part satisfies never;
  }
}

/** Some of them, spread evenly. */
export function some<T>(all: readonly T[], count: number): readonly T[] {
  if (count >= all.length) return all;
  return Array.from({ length: count }, (_, i) => all[Math.floor((i * all.length) / count)]!);
}

/** In another order. */
export function shuffled<T>(all: readonly T[], random: Random): T[] {
  const left = [...all];
  for (let i = left.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [left[i], left[j]] = [left[j]!, left[i]!];
  }
  return left;
}
