import { z } from 'zod';
import {
  combineRubrics,
  contentOf,
  hash32,
  listDataset,
  multiTurn,
  parseArgs,
  rubric,
  xmlParser,
} from '../../backends/environments/kit.ts';
import type { Environment, Example } from '../../backends/environments/kit.ts';
import { words } from './words.ts';

/**
 * Guessing a secret word of five letters. The answer to a guess has a letter below each of its letters: G = correct
 * place, Y = elsewhere in the word, X = not in it. The rewards are those of Prime's environment of this name; the words
 * are our own.
 */

const Args = z.strictObject({
  /** Guesses. */
  max_turns: z.int().min(1).max(20).default(6),
  num_train_examples: z.int().min(1).max(1_000_000).default(2_000),
  num_eval_examples: z.int().min(1).max(100_000).default(20),
  /**
   * `xml` = rules in words and guesses in tags, for models that can read; `plain` = only guesses and feedback, for the
   * embedded model.
   */
  format: z.enum(['xml', 'plain']).default('xml'),
  /** Share of the demonstrated guesses that are random words, regardless of the feedback. */
  wrong_demonstrations: z.number().min(0).max(1).default(0.5),
  /** Decides the held-out tenth of words. */
  seed: z.int().min(0).default(0),
});

/** State of a game. */
interface Game {
  readonly guesses: readonly Guess[];
}

interface Guess {
  readonly word: string;
  /** One of G, Y, X for each letter; null when the guess did not have five letters. */
  readonly feedback: string | null;
}

const guessTag = xmlParser(['guess']);

export function loadEnvironment(args: unknown): Environment {
  const { max_turns, num_train_examples, num_eval_examples, format, wrong_demonstrations, seed } = parseArgs(
    'wordle',
    Args,
    args,
  );
  const isPlain = format === 'plain';
  const guessIn = (text: string) => (isPlain ? text : (guessTag.parse(text).guess ?? '')).trim().toLowerCase();
  const isHeldOut = (word: string) => hash32(seed, 'held out', word) % 10 === 0;
  const prompt = isPlain ? 'wordle' : rules(max_turns);
  const games = (secrets: readonly string[], count: number) =>
    listDataset(Array.from({ length: count }, (_, i) => ({ prompt, answer: secrets[i % secrets.length]! })));
  // Not alphabetical: the first examples should be a fair sample of all.
  const shuffled = words.toSorted((a, b) => hash32(seed, 'order', a) - hash32(seed, 'order', b) || (a < b ? -1 : 1));

  const play = rubric<Game>([
    { name: 'correct_answer', weight: 1, score: ({ state, example }) => Number(isSolved(state, example)) },
    {
      name: 'partial_answer',
      weight: 1,
      score: ({ state, example }) => (isSolved(state, example) ? 0 : partial(state)),
    },
    {
      name: 'length_bonus',
      weight: 1,
      score: ({ state, example }) => (isSolved(state, example) ? 1 / state.guesses.length : 0),
    },
    { name: 'exact_match', weight: 0, score: ({ state, example }) => Number(isSolved(state, example)) },
  ]);
  const form = rubric<Game>([
    {
      name: 'format_reward',
      weight: 0.2,
      score: ({ turns }) =>
        mean(
          turns.map(contentOf).map((said) => (isPlain ? Number(/^[a-z]{5}$/.test(said)) : guessTag.formatReward(said))),
        ),
    },
  ]);

  return multiTurn<Game>({
    name: 'wordle',
    dataset: games(
      shuffled.filter((word) => !isHeldOut(word)),
      num_train_examples,
    ),
    evalDataset: games(shuffled.filter(isHeldOut), num_eval_examples),
    rubric: combineRubrics([play, form]),
    maxTurns: max_turns,
    setup: () => ({ guesses: [] }),
    respond({ example, state, turns }) {
      const word = guessIn(contentOf(turns.at(-1)!));
      const feedback = /^[a-z]{5}$/.test(word) ? feedbackOn(word, example.answer) : null;
      const next: Game = { guesses: [...state.guesses, { word, feedback }] };
      if (word === example.answer) return { state: next, end: 'ok' };
      return { state: next, say: isPlain ? (feedback ?? '?') : told(word, feedback, max_turns - turns.length) };
    },
    demonstrate({ state }, random) {
      const fitting = random() < wrong_demonstrations ? words : words.filter((word) => fits(word, state.guesses));
      const word = fitting[Math.floor(random() * fitting.length)] ?? words[0]!;
      return isPlain ? word : guessTag.format({ guess: word });
    },
  });
}

function rules(guesses: number): string {
  return (
    `Find the secret word. It is English and has five letters; you have ${guesses} guesses. After each guess every letter is marked: ` +
    `G stands where it is right, Y where the letter belongs elsewhere, X where it is not in the word.\n` +
    `Think first if you like, then give one guess in this form:\n${guessTag.format({ guess: 'your word' })}`
  );
}

function told(word: string, feedback: string | null, left: number): string {
  const rest = `Guesses left: ${left}.`;
  if (feedback === null) return `That was no word of five letters in <guess> tags. ${rest}`;
  return `${Array.from(word.toUpperCase()).join(' ')}\n${Array.from(feedback).join(' ')}\n${rest}`;
}

/**
 * Letters in their place are marked first; a letter that is twice in the guess is marked at most as often as the secret
 * has it.
 */
export function feedbackOn(guess: string, secret: string): string {
  const marks = Array.from(guess, (letter, i): string => (letter === secret[i] ? 'G' : 'X'));
  const open = Array.from(secret).filter((_, i) => marks[i] !== 'G');
  for (const [i, letter] of Array.from(guess).entries()) {
    const at = marks[i] === 'G' ? -1 : open.indexOf(letter);
    if (at < 0) continue;
    marks[i] = 'Y';
    open.splice(at, 1);
  }
  return marks.join('');
}

/** Whether a word may be the secret, given the feedback. */
function fits(word: string, guesses: readonly Guess[]): boolean {
  return guesses.every((guess) => guess.feedback === null || feedbackOn(guess.word, word) === guess.feedback);
}

function isSolved({ guesses }: Game, { answer }: Example): boolean {
  return guesses.at(-1)?.word === answer;
}

/** Score of the last guess that was a word: 0.2 for each letter in its place, 0.1 for each that belongs elsewhere. */
function partial({ guesses }: Game): number {
  const feedback = guesses.findLast((guess) => guess.feedback !== null)?.feedback ?? '';
  const count = (mark: string) => feedback.split(mark).length - 1;
  return 0.2 * count('G') + 0.1 * count('Y');
}

function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
}
