import { defineQuery, defineSignal, defineUpdate } from '@temporalio/workflow';
import { payloadConverter } from '../../workflows/payload-converter.ts';
import {
  readEvaluateInput,
  readEvaluateNewestInput,
  readOptimizePromptInput,
  readSweepInput,
  readScheduleChangeInput,
  readSweepSandboxesInput,
  readPlayRoundsInput,
  readTrainRunInput,
} from '../../workflows/inputs.ts';
import { onEventsQuery, onSignal, onUpdate } from '../../workflows/control/listen.ts';
import { refuseSettings, type SettingsContext } from '../../core/rl/live-settings.ts';
import type { signalShapes, updateShapes } from '../../workflows/control/message-shapes.ts';
import { evaluationOf, searchOf } from '../workflows/fake-evaluation.ts';
import type { Random } from './damages.ts';
import { type BadCase, shuffled } from './part.ts';

/** Arguments of a workflow or a message that are right, and what may be changed in them. */
interface Sample {
  /** Whether arguments are checked as the input of a workflow, a signal, an update or a query. */
  readonly kind: 'input' | 'signal' | 'update' | 'query';
  /** Type of the workflow, or name of the message. */
  readonly name: string;
  readonly args: readonly unknown[];
  /** Paths, with [] for any index: may be left out. */
  readonly optional?: readonly string[];
  /** May be null. */
  readonly nullable?: readonly string[];
  /** Anything may be there and below. */
  readonly free?: readonly string[];
  /** Several types are right. */
  readonly loose?: readonly string[];
  /** Names below it are free, and each value is like the one shown. */
  readonly records?: readonly string[];
  /** Another version may have sent more fields. */
  readonly isOpen?: boolean;
}

/** Sent as JSON by any client, as a payload that claims an encoding. */
export interface SentPayload {
  readonly encoding: string | null;
  readonly text: string;
}

export interface SentCase {
  readonly sample: Pick<Sample, 'kind' | 'name'>;
  readonly what: string;
  readonly payloads: readonly SentPayload[];
  readonly mustRefuse: boolean;
  readonly names: readonly string[];
}

const ref = { key: 'specs/1.json', sha256: 'ab', bytes: 10 };
const policy = { step: 1, digest: 'ab', weights: 'weights/step_1/', file: ref, sums: ref };
const handle = { name: 'words', store: 'file:///nowhere/', lineage: 'main', spec: ref, attempt: 1 };
const scored = {
  scored: ref,
  filtered: {
    kept: { scored: ref, policyStep: 0, ordinals: '0-3', oldest: [0], sizes: [4] },
    ended: { trained: '0-3' },
    solved: { all: 0, none: 0, some: 4 },
    means: [0.5],
  },
  ordinals: '0-3',
  rollouts: 4,
  tokens: 10,
  generateS: 0.5,
  scoreS: 0.5,
  occupancy: 0.5,
};
const place = { store: 'file:///nowhere/', name: 'words', prefix: 'evals/words/' };

const searchFree = ['environments[].args', 'model.sampling', 'reflection.fields'];
const samples: readonly Sample[] = [
  {
    kind: 'input',
    name: 'trainRun',
    args: [
      {
        config: 'words.toml',
        run: 'words-b',
        overrides: { max_steps: 6 },
        over: [{ file: 'mine.toml', section: 'x' }],
        dialect: 'prime-rl',
        rewind: 3,
      },
    ],
    optional: ['run', 'overrides', 'overrides.max_steps', 'over', 'over[].section', 'dialect', 'rewind'],
    nullable: ['run', 'overrides', 'over', 'dialect', 'rewind'],
    loose: ['overrides.max_steps'],
    records: ['overrides'],
  },
  {
    kind: 'input',
    name: 'trainRun',
    args: [{ config: 'words.toml', takesOver: { handle, asked: { overrides: { stopAfter: 3 } }, request: 'x/1' } }],
    optional: ['takesOver', 'takesOver.asked.overrides.stopAfter'],
    nullable: ['takesOver', 'takesOver.asked', 'takesOver.handle'],
    records: ['takesOver.asked.overrides'],
    isOpen: true,
  },
  {
    kind: 'input',
    name: 'evaluate',
    args: [{ config: 'evals.toml', over: { num_examples: 20 }, goOn: 'interrupted' }],
    optional: ['over', 'goOn'],
    nullable: ['over', 'goOn'],
    free: ['over.num_examples'],
    records: ['over'],
  },
  {
    kind: 'input',
    name: 'evaluate',
    args: [
      {
        ...evaluationOf('place', 'words'),
        model: { kind: 'version', model: 'words', run: handle, policy, sampling: { max_tokens: 3 } },
        skipExamples: 2,
        systemPrompt: ref,
        about: { version: 3 },
        prices: { input: 1, output: 2 },
        notify: { workflowId: 'words', signal: 'evaluation-ended' },
      },
    ],
    optional: ['skipExamples', 'systemPrompt', 'about', 'prices', 'notify'],
    nullable: ['shuffleSeed'],
    free: ['environment.args', 'model.sampling', 'about'],
    loose: ['shuffleSeed'],
  },
  {
    kind: 'input',
    name: 'evaluate',
    args: [{ inputs: [evaluationOf('place', 'words')], title: 'two', names: ['one'], atOnce: 2 }],
    optional: ['names', 'atOnce'],
    nullable: ['names', 'atOnce', 'inputs[].shuffleSeed'],
    free: ['inputs[].environment.args', 'inputs[].model.sampling'],
    loose: ['inputs[].shuffleSeed'],
  },
  {
    kind: 'input',
    name: 'evaluateNewest',
    args: [{ config: 'evals.toml', run: { name: 'words', store: 'file:outputs' }, onRegression: 'flag' }],
    nullable: ['config', 'run'],
  },
  { kind: 'input', name: 'sweepSandboxes', args: [{ store: 'file:outputs' }] },
  {
    kind: 'input',
    name: 'recordScheduleChange',
    args: [
      { schedule: 'eval.words', store: 'file:outputs', run: 'words', what: 'schedule-pause', asked: 'eval.words' },
    ],
    nullable: ['run'],
  },
  {
    kind: 'input',
    name: 'sweep',
    args: [
      {
        name: 'lr',
        store: 'file:///nowhere/',
        config: 'words.toml',
        over: [{ file: 'mine.toml', section: 'x' }],
        dialect: 'prime-rl',
        rows: [{ learning_rate: 0.001 }],
        runs: [{ name: 'lr-01-s1', row: 0, seed: 1, overrides: { learning_rate: '0.001', seed: '1' } }],
        metric: { name: 'train/reward', goal: 'max', lastSteps: 1 },
        maxSteps: 9,
        halving: { eta: 3, rungs: 3, minSteps: 1 },
        atOnce: 1,
      },
    ],
    optional: [
      'over',
      'over[].section',
      'dialect',
      'rows[].learning_rate',
      'runs[].overrides.learning_rate',
      'runs[].overrides.seed',
    ],
    nullable: ['halving', 'halving.rungs', 'halving.minSteps', 'runs[].seed'],
    free: ['rows[].learning_rate'],
    loose: ['runs[].seed', 'halving.rungs', 'halving.minSteps'],
    records: ['rows[]', 'runs[].overrides'],
  },
  {
    kind: 'input',
    name: 'optimizePrompt',
    args: [{ config: 'gepa.toml', overrides: { max_calls: 200 }, yes: true }],
    optional: ['overrides', 'overrides.max_calls', 'yes'],
    nullable: ['overrides', 'yes'],
    loose: ['overrides.max_calls'],
    records: ['overrides'],
  },
  {
    kind: 'input',
    name: 'optimizePrompt',
    args: [searchOf('place', { startPrompt: ref, notify: { workflowId: 'words', signal: 'prompt-branch-ended' } })],
    optional: ['startPrompt', 'notify'],
    nullable: [
      'perfectScore',
      'initialPrompt',
      'model.servers[].apiKeyVar',
      'reflection.servers[].apiKeyVar',
      'startPrompt',
    ],
    free: searchFree,
    loose: ['perfectScore', 'initialPrompt', 'model.servers[].apiKeyVar', 'reflection.servers[].apiKeyVar'],
  },
  {
    kind: 'input',
    name: 'playRounds',
    args: [{ run: handle, spec: { heartbeatTimeoutS: 20 }, tells: 'words' }],
    isOpen: true,
  },
  ...Object.entries({
    'trainer-leased': [{ epoch: 1, holder: 'a' }],
    'store-missed': [{ worker: 'rollout worker 1 on a', why: 'gone' }],
    'groups-ended': [{ lineage: 'main', parts: [scored] }],
    'rounds-played': [
      {
        lineage: 'main',
        played: { parts: [scored], adopted: 0, lost: { recoveries: 0, rollouts: 0, tokens: 0, seconds: 0.5 } },
      },
    ],
    'rollouts-wait': [{ reason: 'nobody answers' }],
    'evaluation-ended': [
      {
        workflowId: 'words.evals',
        result: {
          environment: 'words',
          model: 'words',
          place,
          folder: 'evals/words/',
          rollouts: 4,
          failed: 0,
          avgReward: 0.5,
          avgMetrics: { exact: 0.5 },
          passAtK: { '1': 0.5 },
          failures: ['one'],
        },
      },
    ],
    'prompt-branch-ended': [
      {
        workflowId: 'words.gepa',
        result: {
          environment: 'words',
          place,
          folder: 'gepa/words/',
          best: 1,
          bestPrompt: ref,
          bestScore: 0.5,
          startScore: 0.25,
          isImproved: true,
          candidates: 2,
          calls: 40,
          stopReason: 'budget',
        },
      },
    ],
    'regression-found': [
      {
        environment: 'words',
        version: 'v3',
        step: 3,
        regression: {
          isWorse: true,
          best: { step: 1, name: 'v1', reward: 0.5 },
          reward: 0.25,
          difference: { mean: -0.25, low: -0.5, high: -0.125 },
          examples: 4,
        },
        action: 'flag',
      },
    ],
    'chunk-left': [1, 2],
    play: [
      [
        {
          round: { step: 1, first: 0, last: 3, policyStep: 0, leases: ref },
          chunks: [{ chunk: { index: 0, count: 1, groups: 4, ordinals: '0-3' }, only: '0', label: 'a' }],
          workers: 2,
          takesNewest: true,
        },
      ],
    ],
    'give-up': [[1, 2]],
  } satisfies Partial<Record<keyof typeof signalShapes, readonly unknown[]>>).map(([name, args]): Sample => ({
    kind: 'signal',
    name,
    args,
    isOpen: true,
    optional: [
      ...['', 'played.'].flatMap((at) =>
        ['kept.oldest', 'kept.sizes', 'means'].map((one) => `${at}parts[].filtered.${one}`),
      ),
      '[].chunks[].only',
    ],
    nullable: [
      'why',
      'parts[].occupancy',
      'played.parts[].occupancy',
      'result.avgReward',
      'result.bestPrompt',
      'result.bestScore',
      'result.startScore',
    ],
    free: ['result.avgMetrics.exact', 'result.passAtK.1'],
    records: ['result.avgMetrics', 'result.passAtK', 'parts[].filtered.ended', 'played.parts[].filtered.ended'],
  })),
  ...(
    [
      ['pause', ['to look at it'], { nullable: [''], optional: [''] }],
      ['set', [{ learning_rate: 0.0005 }], { free: ['learning_rate'], records: [''] }],
      ['rewind', [12], {}],
      ['gepa-branch', ['reverse-text'], { nullable: [''], optional: [''] }],
      ['adopt-prompt', ['reverse-text'], { nullable: [''], optional: [''] }],
      ['raise-budget', [500], {}],
    ] as const
  ).map(([name, args, more]): Sample => ({ kind: 'update', name, args, ...more })),
  { kind: 'query', name: 'events', args: [0], optional: [''] },
];

/** Text that stands in JSON for what `JSON.stringify` cannot write. */
const mark = '@@raw@@';
const raw = (json: string): { readonly [mark]: string } => ({ [mark]: json });
const deepJson = `${'{"deep":'.repeat(5_000)}1${'}'.repeat(5_000)}`;

function jsonOf(value: unknown): string {
  const raws: string[] = [];
  const text = JSON.stringify(value, (_, one: unknown) => {
    if (typeof one !== 'object' || one === null || !(mark in one)) return one;
    return `${mark}${raws.push(String((one as Record<string, unknown>)[mark])) - 1}${mark}`;
  });
  return (text ?? 'null').replaceAll(new RegExp(`"${mark}(\\d+)${mark}"`, 'g'), (_, i: string) => raws[Number(i)]!);
}

interface Place {
  readonly keys: readonly (string | number)[];
  /** Path as refusals name it. */
  readonly path: string;
  /** The path with [] for any index. */
  readonly pattern: string;
  readonly value: unknown;
}

function placesIn(value: unknown, keys: readonly (string | number)[] = []): Place[] {
  const path = keys.reduce<string>(
    (at, key) => (typeof key === 'number' ? `${at}[${key}]` : at === '' ? key : `${at}.${key}`),
    '',
  );
  const here = { keys, path, pattern: path.replaceAll(/\[\d+\]/g, '[]'), value };
  if (typeof value !== 'object' || value === null) return [here];
  const inside = Array.isArray(value) ? [...value.entries()] : Object.entries(value);
  return [here, ...inside.flatMap(([key, one]) => placesIn(one, [...keys, key]))];
}

const gone = Symbol('gone');

function changed(value: unknown, keys: readonly (string | number)[], to: unknown): unknown {
  const [key, ...rest] = keys;
  if (key === undefined) return to;
  const copy = Array.isArray(value) ? [...(value as unknown[])] : { ...(value as Record<string, unknown>) };
  const table = copy as Record<string | number, unknown>;
  const next = changed(table[key], rest, to);
  if (next !== gone) table[key] = next;
  else if (Array.isArray(copy)) copy.splice(Number(key), 1);
  else delete table[key];
  return copy;
}

interface Change {
  readonly what: string;
  readonly to: unknown;
  readonly mustRefuse: boolean;
}

function changesOf(sample: Sample, { pattern, keys, value }: Place): Change[] {
  const isIn = (list: readonly string[] = []): boolean =>
    list.some(
      (one) => pattern === one || (one !== '' && (pattern.startsWith(`${one}.`) || pattern.startsWith(`${one}[`))),
    );
  const isFree = isIn(sample.free);
  const isRecord = sample.records?.includes(pattern) === true;
  const isLoose = sample.loose?.includes(pattern) === true;
  const parent = pattern.slice(0, Math.max(0, pattern.lastIndexOf('.')));
  const isNamedFreely = sample.records?.includes(parent) === true && pattern.includes('.');
  const isItem = typeof keys.at(-1) === 'number';
  const mayGo = isFree || isItem || isNamedFreely || sample.optional?.includes(pattern) === true;
  const mayBeNull = isFree || sample.nullable?.includes(pattern) === true;
  const change = (what: string, to: unknown, mustRefuse = false): Change => ({ what, to, mustRefuse });
  const type = Array.isArray(value) ? 'list' : value === null ? 'null' : typeof value;
  const others: [of: string, what: string, to: unknown][] = [
    ['string', 'is a text', 'text'],
    ['number', 'is a number', 7],
    ['boolean', 'is true', true],
    ['list', 'is an empty list', []],
    ['list', 'is a list of null', [null]],
    ['object', 'is an empty object', {}],
    ['object', 'is an object of another', { other: 1 }],
  ];
  // A file of evaluations, and of a search, may also be given by its path alone.
  const isWholeInput = pattern === '' && sample.kind === 'input';
  const found = [
    ...(pattern === '' ? [] : [change('is missing', gone, !mayGo)]),
    change('is null', null, !mayBeNull && type !== 'null'),
    ...others
      .filter(([of]) => of !== type)
      .map(([of, what, to]) =>
        change(what, to, !isFree && !isLoose && type !== 'null' && !(isWholeInput && of === 'string')),
      ),
    change(
      'is nested deeply',
      raw(deepJson),
      !isFree && !isLoose && !isRecord && type !== 'null' && sample.isOpen !== true,
    ),
    change('is a number without end', raw('1e400'), !isFree),
  ];
  if (type === 'number')
    found.push(
      ...[-1, 0.5, 1e308, 2 ** 60].map((one) => change(`is ${one}`, one)),
      change('is a number as a text', '7', !isFree && !isLoose),
    );
  if (type === 'string')
    found.push(
      ...['', ' ', 'x'.repeat(300_000), '\u0000', '\u001b[2J\u202eevil', '__proto__', '../../etc/passwd', '\ud800'].map(
        (one) => change(`is the text ${JSON.stringify(one.slice(0, 20))}`, one),
      ),
    );
  if (type === 'object' && !isFree) {
    const mustRefuse = sample.isOpen !== true && !isRecord && isStrict(sample, pattern);
    const table = value as Record<string, unknown>;
    const extended = (json: string): unknown => raw(`${jsonOf(table).slice(0, -1)},${json}}`);
    for (const name of ['frobnicate', '__proto__', 'constructor', 'toString', '\u001b[2J\u202e', 'x'.repeat(10_000)])
      found.push(
        change(
          `has a field ${JSON.stringify(name.slice(0, 20))}`,
          extended(`${JSON.stringify(name)}:{"x":1}`),
          mustRefuse,
        ),
      );
    const many = Array.from({ length: 5_000 }, (_, i) => `"unknown_${i}":${i}`).join(',');
    found.push(change('has 5,000 more fields', extended(many), mustRefuse));
  }
  if (type === 'list') {
    const list = value as readonly unknown[];
    found.push(
      change(
        'has 10,000 items that are null',
        Array.from({ length: 10_000 }, () => null),
        !isFree,
      ),
    );
    found.push(change('has a last item that is a list', [...list, [[]]], !isFree));
  }
  return found;
}

/** Only what people write is read strictly: the input itself, and what a file lays over another. */
function isStrict({ kind, name }: Sample, pattern: string): boolean {
  return kind === 'input' && (pattern === '' || (name === 'trainRun' && pattern === 'over[]') || pattern === 'run');
}

/** Whole payloads that are no input of anything. */
const noInputs: readonly (readonly [what: string, payloads: readonly SentPayload[]])[] = [
  ['nothing', []],
  ['null', [{ encoding: 'json/plain', text: 'null' }]],
  ["Python's None", [{ encoding: 'binary/null', text: '' }]],
  ['bytes', [{ encoding: 'binary/plain', text: '"words.toml"' }]],
  ['a protobuf message', [{ encoding: 'binary/protobuf', text: 'xyz' }]],
  ['protobuf as JSON', [{ encoding: 'json/protobuf', text: '{"config":"words.toml"}' }]],
  ['an encrypted payload', [{ encoding: 'binary/encrypted', text: 'xyz' }]],
  ['an encoding that steers', [{ encoding: '\u001b[2J\u202e', text: 'xyz' }]],
  ['an encoding without end', [{ encoding: 'x'.repeat(100_000), text: 'xyz' }]],
  ['no encoding', [{ encoding: null, text: '"words.toml"' }]],
  ['text that is no JSON', [{ encoding: 'json/plain', text: '{config: words.toml' }]],
  ['text that is no JSON and steers', [{ encoding: 'json/plain', text: '\u001b[2J\u202e' }]],
  ['an empty payload', [{ encoding: 'json/plain', text: '' }]],
  ['NaN', [{ encoding: 'json/plain', text: 'NaN' }]],
  ['-Infinity', [{ encoding: 'json/plain', text: '{"config": -Infinity}' }]],
  ['a byte order mark', [{ encoding: 'json/plain', text: '\ufeff{"config":"words.toml"}' }]],
  ['JSON nested 100,000 deep', [{ encoding: 'json/plain', text: '['.repeat(100_000) + ']'.repeat(100_000) }]],
];

function casesOfSample(sample: Sample): SentCase[] {
  const { kind, name, args } = sample;
  const sent = (value: unknown): SentPayload => ({ encoding: 'json/plain', text: jsonOf(value) });
  const right = args.map(sent);
  const found: SentCase[] = [];
  for (const [i, arg] of args.entries())
    for (const place of placesIn(arg))
      for (const { what, to, mustRefuse } of changesOf(sample, place)) {
        const at = place.path === '' ? (args.length === 1 ? '' : `argument ${i + 1}`) : place.path;
        const payload = sent(changed(arg, place.keys, to));
        found.push({
          sample,
          what: `${at === '' ? 'it' : at} ${what}`,
          payloads: right.with(i, payload),
          mustRefuse,
          names: [],
        });
      }
  if (name === 'events') return found;
  const isEmptyRight = args.length === 0 || sample.optional?.includes('') === true;
  for (const [what, payloads] of noInputs) {
    const isNothing = what === 'nothing' || what === 'null' || what === "Python's None";
    found.push({ sample, what, payloads, mustRefuse: !(isNothing && isEmptyRight), names: [] });
  }
  if (kind !== 'signal')
    found.push({ sample, what: 'two inputs', payloads: [...right, sent('more')], mustRefuse: true, names: [] });
  return found;
}

/** Inputs that a client may send, each wrong in one way. */
export function sentCases(random: Random): readonly SentCase[] {
  return shuffled(samples.flatMap(casesOfSample), random);
}

const doors = {
  trainRun: readTrainRunInput,
  evaluate: readEvaluateInput,
  evaluateNewest: readEvaluateNewestInput,
  optimizePrompt: readOptimizePromptInput,
  sweep: readSweepInput,
  sweepSandboxes: readSweepSandboxesInput,
  recordScheduleChange: readScheduleChangeInput,
  playRounds: readPlayRoundsInput,
};

/** Enough of a workflow for those who read its inputs and messages. */
interface Inside {
  readonly info: object;
  readonly signalHandlers: Map<string, { handler: (...args: unknown[]) => unknown }>;
  readonly updateHandlers: Map<
    string,
    { handler: (...args: unknown[]) => unknown; validator: (...args: unknown[]) => void }
  >;
  readonly queryHandlers: Map<string, { handler: (...args: unknown[]) => unknown }>;
  dispatchBufferedUpdates(): void;
  dispatchBufferedSignals(): void;
}

/** A run whose settings are changed. */
const running: SettingsContext = {
  run: 'words',
  spec: {
    learningRate: 1e-3,
    maxSteps: 100,
    maxMismatchKl: null,
    optimizer: { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 },
    eval: null,
    checkpoints: { interval: 10 },
  },
  overrides: {},
  underWay: 41,
};

/** Reads what came as a worker does, without a server. */
function read({ kind, name }: SentCase['sample'], payloads: readonly SentPayload[]): string {
  const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
  const args = payloads.map(({ encoding, text }): unknown =>
    payloadConverter.fromPayload({
      metadata: encoding === null ? {} : { encoding: bytes(encoding) },
      data: bytes(text),
    }),
  );
  const inside: Inside = {
    info: { workflowId: 'words', workflowType: name, memo: {} },
    signalHandlers: new Map(),
    updateHandlers: new Map(),
    queryHandlers: new Map(),
    dispatchBufferedUpdates: () => undefined,
    dispatchBufferedSignals: () => undefined,
  };
  const outside = globalThis as { __TEMPORAL_ACTIVATOR__?: unknown };
  outside.__TEMPORAL_ACTIVATOR__ = inside;
  try {
    if (kind === 'input') doors[name as keyof typeof doors](args);
    else if (kind === 'query') {
      onEventsQuery(defineQuery<unknown, [after: number]>(name), (after) => after);
      inside.queryHandlers.get(name)!.handler(...args);
    } else if (kind === 'update') {
      onUpdate(defineUpdate<string, unknown[], keyof typeof updateShapes>(name as keyof typeof updateShapes), () => '');
      inside.updateHandlers.get(name)!.validator(...args);
      const refused = name === 'set' ? refuseSettings(args[0] as Record<string, number>, running) : null;
      if (refused !== null) throw new Error(refused);
    } else {
      let problem: string | null = null;
      const signal = defineSignal<unknown[], keyof typeof signalShapes>(name as keyof typeof signalShapes);
      onSignal(
        signal,
        () => undefined,
        (said) => (problem = said),
      );
      inside.signalHandlers.get(name)!.handler(...args);
      if (problem !== null) throw new Error(problem);
    }
    return 'it was accepted';
  } finally {
    delete outside.__TEMPORAL_ACTIVATOR__;
  }
}

/** Words of any refusal: what was expected and what came. It goes into the history, so that it has a bound. */
const isShort = /^[^]{1,4000}$/;
const anyRefusal: readonly RegExp[] = [
  /expected|there is no such field|loses digits|cannot begin another|both null/,
  /received|is missing|There are|loses digits|cannot begin|at most|both null/,
  isShort,
];
const withExample = /For example|only a run starts/;

/** Patterns that a refusal of the case must match. */
export function wantedOf({ kind, name }: SentCase['sample']): readonly RegExp[] {
  if (name === 'set') return [/expected|Nothing to set|can be changed/, isShort];
  return kind === 'signal' ? anyRefusal : [...anyRefusal, withExample];
}

export function workflowCases(random: Random): readonly BadCase[] {
  return sentCases(random).map(({ sample, what, payloads, mustRefuse, names }) => ({
    what: `${sample.kind} ${sample.name}: ${what}`,
    names,
    wanted: wantedOf(sample),
    mustRefuse,
    run: () => read(sample, payloads),
  }));
}
