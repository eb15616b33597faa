import { hash32, listDataset, multiTurn, parseArgs, rubric, z } from 'ratchet-rl/environments';
import type { Environment } from 'ratchet-rl/environments';

/** Find a number by guessing: each guess is answered with "more" or "less", until it is right or the turns are used up. */

const Args = z.strictObject({
  largest: z.int().min(3).max(99).default(15).describe('the numbers are from 1 to this'),
  max_turns: z.int().min(1).max(20).default(4).describe('guesses'),
  seed: z.int().min(0).default(0),
});

/** State of a rollout. `respond` returns a new one, and never changes one in place. */
interface Game {
  readonly guesses: readonly number[];
}

/** Called by Ratchet with `args = { … }` of the config's [[env]]. */
export function loadEnvironment(args: unknown): Environment {
  const { largest, max_turns, seed } = parseArgs('my-env', Args, args);
  // The same question each time: the answer is found by talking. Several examples have the same number.
  const rows = (of: string, count: number) =>
    Array.from({ length: count }, (_, i) => ({
      prompt: `1-${largest}?`,
      answer: String(1 + (hash32(seed, of, i) % largest)),
    }));

  return multiTurn<Game>({
    name: 'my-env',
    dataset: listDataset(rows('train', 400)),
    evalDataset: listDataset(rows('held out', 40)),
    maxTurns: max_turns,
    setup: () => ({ guesses: [] }),
    // Depends on its argument only: it runs again when a rollout continues after a crash, and when a stored rollout is
    // scored.
    respond: ({ example, state, turns }) => {
      const guess = Number(turns.at(-1)!.text.trim());
      const next = { guesses: [...state.guesses, guess] };
      if (!Number.isInteger(guess)) return { state: next, end: 'policy_failure' };
      const answer = Number(example.answer);
      return guess === answer ? { state: next, end: 'ok' } : { state: next, say: guess < answer ? 'more' : 'less' };
    },
    // The reward is the sum of weight · score: found, and sooner is better.
    rubric: rubric<Game>([
      {
        name: 'found',
        weight: 1,
        score: ({ state, example }) => Number(state.guesses.at(-1) === Number(example.answer)),
      },
      {
        name: 'guesses_left',
        weight: 0.5,
        score: ({ state }) => 1 - state.guesses.length / max_turns,
      },
    ]),
    // Demonstrations for the warm-up before RL, [sft] in the config: random guesses among the numbers left.
    demonstrate: ({ turns, messages }, random) => {
      let [low, high] = [1, largest];
      const [, ...answers] = messages.filter(({ role }) => role === 'user');
      for (const [i, { text }] of turns.entries()) {
        const said = answers[i]?.content;
        if (said === 'more') low = Math.max(low, Number(text) + 1);
        if (said === 'less') high = Math.min(high, Number(text) - 1);
      }
      return String(low + Math.floor(random() * (high - low + 1)));
    },
  });
}
