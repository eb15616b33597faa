import { z } from 'zod';
import {
  contentOf,
  hash32,
  listDataset,
  multiTurn,
  parseArgs,
  randomStream,
  rubric,
  xmlParser,
} from '../../backends/environments/kit.ts';
import type { DatasetRow, Environment, Example, RewardInput } from '../../backends/environments/kit.ts';
import { familyNames, givenNames } from './names.ts';
import { similarity } from './similarity.ts';

/**
 * Keeping a sorted list of names over several turns: each user message brings new names, each answer lists all names so
 * far in alphabetical order, with the new ones marked. Arguments and reward are those of Prime's environment of this
 * name; the names are our own.
 */

const Args = z
  .strictObject({
    min_turns: z.int().min(1).max(20).default(1),
    max_turns: z.int().min(1).max(20).default(3),
    min_names_per_turn: z.int().min(1).max(10).default(1),
    max_names_per_turn: z.int().min(1).max(10).default(5),
    /** Exponent on the similarity, so that an almost correct list scores much less than a correct one. */
    similarity_power: z.number().positive().default(4),
    /** true: raises each turn's similarity, then takes the mean; false: raises the mean. */
    power_per_turn: z.boolean().default(true),
    /**
     * `xml` = instructions in words and answers in tags, for models that can read; names are given and family name,
     * sorted by one of them. `plain` = only names in both directions, given names only, for the embedded model.
     */
    format: z.enum(['xml', 'plain']).default('xml'),
    num_train_examples: z.int().min(1).max(1_000_000).default(5_000),
    num_eval_examples: z.int().min(1).max(100_000).default(500),
    /** Share of the demonstrated turns that are wrong, so that the warm-up leaves something to learn. */
    wrong_demonstrations: z.number().min(0).max(1).default(0.3),
    /** Decides names and turns, and the held-out tenth of conversations. */
    seed: z.int().min(0).default(0),
  })
  .refine((args) => args.min_turns <= args.max_turns, { path: ['min_turns'], error: 'expected at most max_turns' })
  .refine((args) => args.min_names_per_turn <= args.max_names_per_turn, {
    path: ['min_names_per_turn'],
    error: 'expected at most max_names_per_turn',
  });
type Args = z.infer<typeof Args>;

export function loadEnvironment(args: unknown): Environment {
  const options = parseArgs('alphabet-sort', Args, args);
  const words = options.format === 'xml' ? xmlWords : plainWords;
  const isHeldOut = (key: string) => hash32(options.seed, 'held out', key) % 10 === 0;

  // A list of many times the correct length has next to nothing in common with it, and comparing them would take
  // minutes.
  const similarities = ({ example, turns }: RewardInput): number[] =>
    answersOf(example).map((answer, i) => {
      const said = words.listIn(turns[i] ? contentOf(turns[i]) : '', i);
      const [list, right] = [said?.join('\n').toLowerCase() ?? '', answer.join('\n').toLowerCase()];
      return list === '' || list.length > 10 * right.length + 1_000 ? 0 : similarity(list, right);
    });

  return multiTurn<null>({
    name: 'alphabet-sort',
    dataset: listDataset(() => drawConversations(options, options.num_train_examples, (key) => !isHeldOut(key))),
    evalDataset: listDataset(() => drawConversations(options, options.num_eval_examples, isHeldOut)),
    rubric: rubric([
      {
        name: 'similarity',
        weight: 1,
        score(rollout) {
          const { similarity_power: power, power_per_turn: isPerTurn } = options;
          const raised = similarities(rollout).map((value) => (isPerTurn ? value ** power : value));
          return isPerTurn ? mean(raised) : mean(raised) ** power;
        },
      },
      {
        name: 'exact_match',
        weight: 0,
        score: (rollout) => Number(similarities(rollout).every((value) => value === 1)),
      },
    ]),
    maxTurns: options.max_turns,
    setup: () => null,
    respond({ example, turns }) {
      const next = Info.parse(example.info).names[turns.length];
      if (next === undefined) return { state: null, end: 'ok' };
      return { state: null, say: words.more(next, Info.parse(example.info).by) };
    },
    demonstrate({ example, turns }, random) {
      const answer = answersOf(example)[turns.length]!;
      return words.answer(random() < options.wrong_demonstrations ? spoil(answer, random) : answer, turns.length);
    },
  });
}

/** Contents of an example: the new names of each turn, and the part of a name to sort by. */
const Info = z.object({ names: z.array(z.array(z.string())), by: z.enum(['first', 'last']) });
type Info = z.infer<typeof Info>;

/**
 * The correct answer to each turn: all names so far in order, with the new ones marked. In the first turn all are new
 * and none is marked.
 */
function answersOf({ info }: Pick<Example, 'info'>): string[][] {
  const { names, by } = Info.parse(info);
  return names.map((fresh, turn) => {
    const all = names.slice(0, turn + 1).flat();
    const sorted = all.toSorted((a, b) => (sortKey(a, by) < sortKey(b, by) ? -1 : 1));
    return sorted.map((name) => (turn > 0 && fresh.includes(name) ? `${name}${newName}` : name));
  });
}

/** How an answer marks a name that its turn brought. */
const newName = ' // new name!';

/** Names are written as one word with two capitals, `AdaLopez`; no two of one conversation have a part in common. */
function sortKey(name: string, by: Info['by']): string {
  return by === 'first' ? name : (/[a-z]([A-Z].*)$/.exec(name)?.[1] ?? name);
}

function drawConversations(options: Args, count: number, isWanted: (key: string) => boolean): DatasetRow[] {
  const random = randomStream(options.seed, 'alphabet-sort');
  const between = (min: number, max: number) => min + Math.floor(random() * (max - min + 1));
  const words = options.format === 'xml' ? xmlWords : plainWords;
  const rows = new Map<string, DatasetRow>();
  // Stops after so many draws without a new row: hardly any are left.
  for (let rejected = 0; rows.size < count && rejected < drawsMax; rejected++) {
    const turns = between(options.min_turns, options.max_turns);
    const sizes = Array.from({ length: turns }, () => between(options.min_names_per_turn, options.max_names_per_turn));
    const by = options.format === 'xml' && random() < 0.5 ? 'last' : 'first';
    const pool = words.draw(
      sizes.reduce((sum, size) => sum + size, 0),
      random,
    );
    const names = sizes.map((size) => pool.splice(0, size));
    const key = `${by} ${names.map((fresh) => fresh.join(' ')).join(' / ')}`;
    if (rows.has(key) || !isWanted(key)) continue;
    const info: Info = { names, by };
    rows.set(key, { prompt: words.first(names[0]!, by), answer: answersOf({ info }).at(-1)!.join('\n'), info });
    rejected = 0;
  }
  return [...rows.values()];
}

const drawsMax = 2_000;

/** Wording of names in prompts and answers. */
interface Words {
  draw(count: number, random: () => number): string[];
  first(names: readonly string[], by: Info['by']): string;
  more(names: readonly string[], by: Info['by']): string;
  answer(names: readonly string[], turn: number): string;
  /** The list a completion gives; undefined when it gives none. */
  listIn(completion: string, turn: number): string[] | undefined;
}

const firstTag = xmlParser(['alphabetical_sorted']);
const laterTag = xmlParser(['combined_alphabetical_sorted']);

const xmlWords: Words = {
  draw(count, random) {
    const family = drawSome(familyNames, count, random);
    return drawSome(givenNames, count, random).map((given, i) => `${given}${family[i]}`);
  },
  first: (names, by) =>
    `Put these names in alphabetical order by ${by.toUpperCase()} name: ${names.join(', ')}\n\n` +
    `Answer with one name per line, in these tags:\n${firstTag.format({ alphabetical_sorted: 'Name1\nName2' })}`,
  more: (names, by) =>
    `Add these names to your list and give all of it again in alphabetical order by ${by.toUpperCase()} name: ${names.join(', ')}\n\n` +
    `Write \`${newName.trim()}\` behind each name that was not in your list before, in these tags:\n` +
    laterTag.format({ combined_alphabetical_sorted: `Name1\nName2${newName}` }),
  answer: (names, turn) =>
    turn === 0
      ? firstTag.format({ alphabetical_sorted: names.join('\n') })
      : laterTag.format({ combined_alphabetical_sorted: names.join('\n') }),
  listIn(completion, turn) {
    const list =
      turn === 0
        ? firstTag.parse(completion).alphabetical_sorted
        : laterTag.parse(completion).combined_alphabetical_sorted;
    return list?.split('\n').map((line) => line.trim());
  },
};

/** A new name's mark is a star. */
const plainWords: Words = {
  draw: (count, random) => drawSome(givenNames, count, random),
  first: (names) => names.join(' '),
  more: (names) => names.join(' '),
  answer: (names) => names.map((name) => name.replace(newName, '*')).join(' '),
  listIn: (completion) => completion.split(' ').map((word) => word.replace(/\*$/, newName)),
};

/** Distinct words, in random order. */
function drawSome(words: readonly string[], count: number, random: () => number): string[] {
  const chosen = new Set<string>();
  while (chosen.size < count) chosen.add(words[Math.floor(random() * words.length)]!);
  return [...chosen];
}

/** A wrong demonstration: two neighbours swapped, a name left out, or a mark missing or misplaced. */
function spoil(answer: readonly string[], random: () => number): string[] {
  const at = Math.floor(random() * answer.length);
  const kind = random();
  if (answer.length > 1 && kind < 0.6) {
    const other = at === 0 ? 1 : at - 1;
    return answer.map((name, i) => (i === at ? answer[other]! : i === other ? answer[at]! : name));
  }
  if (answer.length > 1 && kind < 0.8) return answer.filter((_, i) => i !== at);
  return answer.map((name, i) =>
    i !== at ? name : name.endsWith(newName) ? name.replace(newName, '') : name + newName,
  );
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
