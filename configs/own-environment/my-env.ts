import { hash32, listDataset, parseArgs, randomStream, rubric, singleTurn, z } from 'ratchet-rl/environments';
import type { Environment } from 'ratchet-rl/environments';

/** Writing a word in capitals: the user message is the word, the correct answer the same letters as capitals. */

const Args = z.strictObject({
  /** Number of words, of which a tenth is held out. */
  words: z.int().min(100).max(100_000).default(2000).describe('how many words there are, a tenth of them held out'),
  max_length: z.int().min(3).max(12).default(5).describe('of the longest word'),
  seed: z.int().min(0).default(0),
});

/** Called by Ratchet with `args = { … }` of the config's [[env]]. */
export function loadEnvironment(args: unknown): Environment {
  const { words: count, max_length, seed } = parseArgs('my-env', Args, args);
  const words = makeWords(count, max_length, seed);
  const isHeldOut = (word: string) => hash32(seed, 'held out', word) % 10 === 0;

  return singleTurn({
    name: 'my-env',
    dataset: dataset(words.filter((word) => !isHeldOut(word))),
    evalDataset: dataset(words.filter(isHeldOut)),
    // The reward is the sum of weight · score. A function of weight 0 is only a metric.
    rubric: rubric([
      {
        name: 'letters_right',
        weight: 1,
        score: ({ completion, example }) => lettersRight(completion, example.answer),
      },
      { name: 'exact_match', weight: 0, score: ({ completion, example }) => Number(completion === example.answer) },
    ]),
    // Demonstrations for the warm-up before RL, [sft] in the config: half of the letters stay unchanged.
    demonstrate: ({ answer }, random) =>
      Array.from(answer, (letter) => (random() < 0.5 ? letter.toLowerCase() : letter)).join(''),
  });
}

function dataset(words: readonly string[]) {
  return listDataset(words.map((word) => ({ prompt: word, answer: word.toUpperCase() })));
}

/** Share of positions with the correct letter, 0 to 1. */
function lettersRight(completion: string, answer: string): number {
  const right = Array.from(answer).filter((letter, i) => letter === completion[i]).length;
  return right / Math.max(completion.length, answer.length);
}

/** Invented words of alternating consonants and vowels; a seed always gives the same ones. */
function makeWords(count: number, maxLength: number, seed: number): string[] {
  const random = randomStream('words', seed);
  const anyOf = (letters: string) => letters[Math.floor(random() * letters.length)]!;
  const words = new Set<string>();
  while (words.size < count) {
    const length = 3 + Math.floor(random() * (maxLength - 2));
    words.add(Array.from({ length }, (_, i) => anyOf(i % 2 === 0 ? 'bcdfghjklmnprstvz' : 'aeiou')).join(''));
  }
  return [...words];
}
