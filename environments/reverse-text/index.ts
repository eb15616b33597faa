import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { listDataset, parseArgs, rubric, singleTurn } from '../../backends/environments/kit.ts';
import type { Environment } from '../../backends/environments/kit.ts';
import { lazily } from '../../core/lazily.ts';
import { hash32 } from '../../core/random.ts';

/** Writing a word backwards: the user message is the word, the correct answer its letters in reverse. */

const wordLength = z.int().min(3).max(8);

const Args = z
  .strictObject({
    min_length: wordLength.default(3),
    max_length: wordLength.default(8),
    /** Share of the demonstrations that are wrong, so that the warm-up leaves something to learn. */
    wrong_demonstrations: z.number().min(0).max(1).default(0.65),
    /** Decides the held-out tenth of words. */
    seed: z.int().min(0).default(0),
  })
  .refine(({ min_length, max_length }) => min_length <= max_length, {
    path: ['min_length'],
    error: 'expected at most max_length',
  });

export function loadEnvironment(args: unknown): Environment {
  const { min_length, max_length, wrong_demonstrations, seed } = parseArgs('reverse-text', Args, args);
  const words = lazily(() =>
    readFileSync(new URL('words.txt', import.meta.url), 'utf8')
      .split('\n')
      .filter((word) => word.length >= min_length && word.length <= max_length)
      // Not alphabetical: the first examples should be a fair sample of all.
      .map((word) => ({ word, order: hash32(seed, 'order', word) }))
      .sort((a, b) => a.order - b.order || (a.word < b.word ? -1 : 1))
      .map(({ word }) => word),
  );
  const isHeldOut = (word: string) => hash32(seed, 'held out', word) % 10 === 0;

  return singleTurn({
    name: 'reverse-text',
    dataset: wordDataset(() => words().filter((word) => !isHeldOut(word))),
    evalDataset: wordDataset(() => words().filter(isHeldOut)),
    rubric: rubric([
      {
        name: 'positions_right',
        weight: 1,
        score: ({ completion, example }) => positionsRight(completion, example.answer),
      },
      { name: 'exact_match', weight: 0, score: ({ completion, example }) => Number(completion === example.answer) },
    ]),
    demonstrate: ({ answer }, random) =>
      random() < wrong_demonstrations ? spoil(answer, max_length + 1, random) : answer,
  });
}

function wordDataset(words: () => readonly string[]) {
  return listDataset(() => words().map((word) => ({ prompt: word, answer: reverse(word) })));
}

/** Share of positions with the correct letter; missing and extra letters count as wrong. */
function positionsRight(completion: string, answer: string): number {
  const right = Array.from(answer).filter((letter, i) => letter === completion[i]).length;
  return right / Math.max(completion.length, answer.length);
}

/** A wrong demonstration: not reversed, or half the letters wrong, or a letter or two dropped or doubled. */
function spoil(answer: string, maxLength: number, random: () => number): string {
  const kind = random();
  if (kind < 0.34) return reverse(answer);
  if (kind < 0.67)
    return Array.from(answer)
      .map((letter) => (random() < 0.5 ? anyLetter(random) : letter))
      .join('');
  const from = Math.floor(random() * answer.length);
  const to = from + 1 + Math.floor(random() * 2);
  const dropped = random() < 0.5;
  return (answer.slice(0, dropped ? from : to) + answer.slice(dropped ? to : from)).slice(0, maxLength);
}

function anyLetter(random: () => number): string {
  return String.fromCodePoint(97 + Math.floor(random() * 26));
}

function reverse(word: string): string {
  return Array.from(word).reverse().join('');
}
