import { z } from 'zod';
import {
  answeredCallsOf,
  callText,
  type DatasetRow,
  hash32,
  listDataset,
  numbersIn,
  parseArgs,
  permutation,
  rubric,
  tool,
  toolEnvironment,
  ToolError,
  withoutThinking,
} from '../../backends/environments/kit.ts';
import type { ChatMessage, Environment, RewardInput } from '../../backends/environments/kit.ts';

/**
 * A tool task of two turns, for a small chat model: only a tool knows the price or the shelf of a thing. The first turn
 * calls it, the second gives the requested number.
 */

const Args = z.strictObject({
  shown: z
    .int()
    .min(0)
    .max(4)
    .default(2)
    .describe('questions before the one that is asked, the first with its answer, the others with their call'),
  system_prompt: z.string().nullable().default(null).describe('null = instructions of ours, "" = none'),
  num_train_examples: z.int().min(1).max(2_000).default(1_000),
  num_eval_examples: z.int().min(1).max(500).default(200),
  seed: z
    .int()
    .min(0)
    .default(0)
    .describe('chooses prices, shelves and the order, and which tenth of the things is held out'),
});
type Args = z.infer<typeof Args>;

// Explains tools in words, since the model's own chat template may not support them.
const instructions = `You do not know prices and shelves: look them up. To look something up, write ${callText('find', { thing: 'green table' }).replaceAll('\n', '')} and nothing else. Then answer with the number.`;

export function loadEnvironment(args: unknown): Environment {
  const options = parseArgs('stock-room', Args, args);
  const isHeldOut = (thing: string) => hash32(options.seed, 'held out', thing) % 10 === 0;
  return toolEnvironment({
    name: 'stock-room',
    dataset: listDataset(() => drawQuestions(options, options.num_train_examples, (thing) => !isHeldOut(thing))),
    evalDataset: listDataset(() => drawQuestions(options, options.num_eval_examples, isHeldOut)),
    maxTurns: 2,
    tools: [
      tool({
        name: 'find',
        description: 'Says what a thing costs and on which shelf it is.',
        parameters: z.strictObject({ thing: z.string().describe('its color and its name') }),
        run({ thing }) {
          const name = thing.trim().toLowerCase();
          if (things.includes(name)) return entryOf(options.seed, name).said;
          throw new ToolError(`there is no ${JSON.stringify(thing)}.`);
        },
      }),
    ],
    rubric: rubric([
      { name: 'looked_up', weight: 0.4, score: (rollout) => Number(hasLookedUp(rollout)) },
      { name: 'exact_match', weight: 0.6, score: (rollout) => Number(hasLookedUp(rollout) && isRight(rollout)) },
    ]),
    demonstrate: ({ example, messages }) =>
      messages.at(-1)!.role === 'tool' ? example.answer : callText('find', { thing: String(example.info!['thing']) }),
  });
}

const colors = 'red,blue,green,yellow,black,white,brown,gray,pink,purple,orange,silver'.split(',');
const objects =
  'lamp,chair,coat,box,cup,door,bag,ball,bed,book,boat,bell,brush,clock,drum,fan,hat,key,kite,knife,map,mug,pen,pan,pot,ring,rope,rug,shirt,shoe,sock,spoon,stool,tent,toy,vase'.split(
    ',',
  );
const things = colors.flatMap((color) => objects.map((object) => `${color} ${object}`));

const questions = {
  price: (thing: string) => `What does the ${thing} cost?`,
  shelf: (thing: string) => `On which shelf is the ${thing}?`,
} as const;
type Asked = keyof typeof questions;

/** Numbers of a thing: two different ones, of two digits each. */
function entryOf(seed: number, thing: string): Record<Asked, number> & { readonly said: string } {
  const price = 10 + (hash32(seed, 'price', thing) % 90);
  const shelf = 10 + ((price - 10 + 1 + (hash32(seed, 'shelf', thing) % 89)) % 90);
  return { price, shelf, said: `The ${thing} costs ${price} and is on shelf ${shelf}.` };
}

/** The first and only call asks for the thing of the question. */
function hasLookedUp({ example, turns }: RewardInput): boolean {
  const [first, ...others] = answeredCallsOf(turns);
  return first !== undefined && others.length === 0 && first.answer === example.info!['known'];
}

/** A single number, and the correct one. */
function isRight({ completion, example }: RewardInput): boolean {
  const said = numbersIn(withoutThinking(completion).slice(0, answerLengthMax));
  return said.length === 1 && said[0] === Number(example.answer);
}

const answerLengthMax = 200;

function drawQuestions(
  { seed, shown, system_prompt }: Args,
  count: number,
  isWanted: (thing: string) => boolean,
): DatasetRow[] {
  const system = system_prompt ?? instructions;
  const begin: ChatMessage[] = [
    ...(system === '' ? [] : [{ role: 'system' as const, content: system }]),
    ...shownThings.slice(0, shown).flatMap(([asked, thing], i) => answered({ asked, thing, isWhole: i === 0 }, seed)),
  ];
  const rows = things.filter(isWanted).flatMap((thing) =>
    (['price', 'shelf'] as const).map((asked) => {
      const entry = entryOf(seed, thing);
      return {
        prompt: [...begin, { role: 'user' as const, content: questions[asked](thing) }],
        answer: String(entry[asked]),
        info: { thing, known: entry.said },
      };
    }),
  );
  return permutation(rows.length, seed, 'stock-room')
    .slice(0, count)
    .map((i) => rows[i]!);
}

/** Things in demonstrations, which no example has. */
const shownThings = [
  ['price', 'green table'],
  ['shelf', 'white mirror'],
  ['price', 'black bottle'],
  ['shelf', 'red candle'],
] as const satisfies readonly (readonly [Asked, string])[];

/**
 * The first with its answer, the others with the call only: a small model repeats what came last, and its first turn
 * must be a call.
 */
function answered(
  { asked, thing, isWhole }: { asked: Asked; thing: string; isWhole: boolean },
  seed: number,
): ChatMessage[] {
  const entry = entryOf(seed, thing);
  const rest = [
    { role: 'tool', content: entry.said },
    { role: 'assistant', content: String(entry[asked]) },
  ] as const;
  return [
    { role: 'user', content: questions[asked](thing) },
    { role: 'assistant', content: callText('find', { thing }).replaceAll('\n', '') },
    ...(isWhole ? rest : []),
  ];
}
