import {
  callText,
  hash32,
  listDataset,
  parseArgs,
  rubric,
  tool,
  toolCallsOf,
  toolEnvironment,
  z,
} from 'ratchet-rl/environments';
import type { Environment } from 'ratchet-rl/environments';

/** Prices of things that only the tool knows. A turn without a call is the final answer. */

const Args = z.strictObject({
  max_turns: z.int().min(2).max(10).default(3).describe('turns of the model; a call takes one'),
  seed: z.int().min(0).default(0).describe('of the prices'),
});

const things = 'apple bean bread cake corn egg fig grape ham leek lemon lime melon milk mint nut oat onion pea pear plum rice salt tea'.split(' '); // prettier-ignore

/** Called by Ratchet with `args = { … }` of the config's [[env]]. */
export function loadEnvironment(args: unknown): Environment {
  const { max_turns, seed } = parseArgs('my-env', Args, args);
  const priceOf = (thing: string) => String(1 + (hash32(seed, 'price', thing) % 9));
  const isHeldOut = (thing: string) => hash32(seed, 'held out', thing) % 4 === 0;
  const rows = things.map((thing) => ({ prompt: thing, answer: priceOf(thing) }));

  return toolEnvironment({
    name: 'my-env',
    dataset: listDataset(rows.filter(({ prompt }) => !isHeldOut(prompt))),
    evalDataset: listDataset(rows.filter(({ prompt }) => isHeldOut(prompt))),
    // The model sees the name, the description and the parameters. Wrong arguments are answered with the error.
    tools: [
      tool({
        name: 'price',
        description: 'What one of a thing costs.',
        parameters: z.object({ thing: z.string().describe('as it was asked for') }),
        run: ({ thing }) => (things.includes(thing) ? priceOf(thing) : 'There is none.'),
      }),
    ],
    maxTurns: max_turns,
    rubric: rubric([
      {
        name: 'right',
        weight: 1,
        score: ({ completion, example }) => Number(completion.trim() === example.answer),
      },
      { name: 'asked', weight: 0.2, score: ({ turns }) => Number(toolCallsOf(turns).length === 1) },
    ]),
    // Demonstrations for the warm-up before RL, [sft] in the config: a third of these answers are guesses.
    demonstrate: ({ example, turns, messages }, random) => {
      const guess = String(1 + Math.floor(random() * 9));
      if (turns.length > 0) return messages.at(-1)!.content;
      return random() < 1 / 3 ? guess : callText('price', { thing: example.prompt.at(-1)!.content });
    },
  });
}
