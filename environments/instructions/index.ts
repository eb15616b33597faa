import { z } from 'zod';
import {
  type DatasetRow,
  type Example,
  hash32,
  listDataset,
  parseArgs,
  randomStream,
  rubric,
  singleTurn,
  withoutThinking,
} from '../../backends/environments/kit.ts';
import type { Environment } from '../../backends/environments/kit.ts';
import { exclusive, Instruction, type KindName, kindNames, kinds, mentions, standsAlone } from './checks.ts';
import { follow } from './follow.ts';

/**
 * Instructions that a program checks, in the style of IFEval: a topic, and requirements on the answer. An answer is
 * correct when it is on topic and follows every instruction; that is half of the reward, and the share of followed
 * instructions the other half.
 */

const Args = z
  .strictObject({
    kinds: z
      .array(z.enum(kindNames))
      .min(1)
      .default([...kindNames]),
    /** Instructions of one prompt. */
    min_instructions: z.int().min(1).max(3).default(1),
    max_instructions: z.int().min(1).max(3).default(2),
    /** System message before every prompt; empty = none. */
    system_prompt: z.string().default('Follow the instructions exactly.'),
    num_train_examples: z.int().min(1).max(1_000_000).default(5_000),
    num_eval_examples: z.int().min(1).max(100_000).default(500),
    /** Share of the demonstrations that follow no instruction. */
    wrong_demonstrations: z.number().min(0).max(1).default(0.3),
    /** Decides the prompts, and the held-out tenth. */
    seed: z.int().min(0).default(0),
  })
  .refine((args) => args.min_instructions <= args.max_instructions, {
    path: ['min_instructions'],
    error: 'expected at most max_instructions',
  });
type Args = z.infer<typeof Args>;

export function loadEnvironment(args: unknown): Environment {
  const options = parseArgs('instructions', Args, args);
  const isHeldOut = (request: string) => hash32(options.seed, 'held out', request) % 10 === 0;
  return singleTurn({
    name: 'instructions',
    dataset: listDataset(() => drawRequests(options, options.num_train_examples, (request) => !isHeldOut(request))),
    evalDataset: listDataset(() => drawRequests(options, options.num_eval_examples, isHeldOut)),
    rubric: rubric([
      {
        name: 'exact_match',
        weight: 0.5,
        score: ({ completion, example }) => {
          const { share, isAboutIt } = judge(completion, example);
          return Number(share === 1 && isAboutIt);
        },
      },
      { name: 'followed', weight: 0.5, score: ({ completion, example }) => judge(completion, example).share },
      {
        name: 'is_about_it',
        weight: 0,
        score: ({ completion, example }) => Number(judge(completion, example).isAboutIt),
      },
    ]),
    demonstrate: ({ info }, random) =>
      random() < options.wrong_demonstrations ? 'No, not today, and why would anybody ask' : follow(Info.parse(info)),
  });
}

/** Contents of an example. */
const Info = z.object({ topic: z.string(), instructions: z.array(Instruction) });
type Info = z.infer<typeof Info>;

function judge(completion: string, { info }: Pick<Example, 'info'>): { share: number; isAboutIt: boolean } {
  const { topic, instructions } = Info.parse(info);
  const said = withoutThinking(completion);
  if (said === '' || said.length > answerLengthMax) return { share: 0, isAboutIt: false };
  const followed = instructions.filter(({ kind, value }) => kinds[kind].isFollowed(said, value));
  return { share: followed.length / instructions.length, isAboutIt: mentions(said, topic) };
}

/** The task asks for a sentence; much longer answers fail, since checking them takes time. */
const answerLengthMax = 2_000;

const topics =
  'winter,bread,music,coffee,books,rain,friends,dogs,trains,rivers,mountains,gardens,horses,stars,snow,bridges,fire,clouds,islands,lamps,cheese,letters,boats,forests,shoes,windows,birds,soup,clocks,roads'.split(
    ',',
  );

/** Distinct requests, as many as requested or as exist (almost all, with few kinds). */
function drawRequests(options: Args, count: number, isWanted: (request: string) => boolean): DatasetRow[] {
  const random = randomStream(options.seed, 'instructions');
  const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)]!;
  const { min_instructions: min, max_instructions: max, system_prompt } = options;
  const system = system_prompt === '' ? [] : [{ role: 'system' as const, content: system_prompt }];
  const rows = new Map<string, DatasetRow>();
  // Stops after so many draws without a new row: hardly any are left.
  for (let rejected = 0; rows.size < count && rejected < drawsMax; rejected++) {
    const topic = pick(topics);
    const chosen = drawKinds(options.kinds, min + Math.floor(random() * (max - min + 1)), random);
    const instructions = chosen.map((kind) => ({ kind, value: pick(kinds[kind].values) }));
    const request = requestOf({ topic, instructions });
    if (rows.has(request) || !isWanted(request)) continue;
    const info: Info = { topic, instructions };
    rows.set(request, { prompt: [...system, { role: 'user', content: request }], answer: follow(info), info });
    rejected = 0;
  }
  return [...rows.values()];
}

const drawsMax = 2_000;

/** In the order of the table, so that the same instructions are the same request. */
function drawKinds(from: readonly KindName[], count: number, random: () => number): KindName[] {
  const drawn = new Set<KindName>();
  const isFree = (kind: KindName) => {
    if (drawn.size > 0 && (standsAlone.has(kind) || [...drawn].some((other) => standsAlone.has(other)))) return false;
    return !drawn.has(kind) && !exclusive.some((pair) => pair.includes(kind) && pair.some((other) => drawn.has(other)));
  };
  while (drawn.size < count) {
    const free = from.filter(isFree);
    if (free.length === 0) break;
    drawn.add(free[Math.floor(random() * free.length)]!);
  }
  return kindNames.filter((kind) => drawn.has(kind));
}

function requestOf({ topic, instructions }: Info): string {
  const isSentence = !instructions.some(({ kind }) => standsAlone.has(kind));
  const what = isSentence ? `Write one short sentence about ${topic}.` : `Think of ${topic}.`;
  return [what, ...instructions.map(({ kind, value }) => kinds[kind].ask(value))].join(' ');
}
