import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, test } from 'node:test';
import { parse, stringify } from 'smol-toml';
import { z } from 'zod';
import type { Dialect } from '../../config/dialects/dialect.ts';
import { dialects } from '../../config/dialects/index.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { tablesOf } from '../../config/toml/schema-reader.ts';
import { copied, isTable, setAt, type Table, valueAt } from '../../config/toml/tables.ts';
import { configsFolder } from './run-files.ts';

/**
 * Nothing is accepted and dropped: for every field of every dialect there is a value that changes the run's spec or says a
 * warning, against the same file without the field; or every value but the one that is meant anyway is refused at the field.
 */

const seed = (name: string): Table => parse(readFileSync(path.join(configsFolder, 'seeds', name), 'utf8'));
const model = 'Qwen/Qwen3-4B';
const environment = { id: 'owner/gsm8k' };

/** Least valid file of each dialect. */
const bases: Readonly<Record<string, Table>> = {
  'prime-rl': {
    model: { name: model },
    max_steps: 100,
    trainer: {},
    orchestrator: { batch_size: 32, group_size: 8, train: { source: [{ env: { taskset: { id: 'owner/gsm8k' } } }] } },
    inference: {},
  },
  'prime-rl-0.4': seed('prime-rl.toml'),
  'prime-rl-sft': { model: { name: model }, max_steps: 100, data: { name: 'owner/rows' } },
  'vf-rl': { model, env: environment, inference: { gpus: 1 }, trainer: { gpus: 1, args: {} } },
  grpo: { model, env: environment, trainer: { args: { max_steps: 10, num_generations: 4 } } },
  ratchet: { model: 'preset:x', env: [{ id: 'reverse-text' }] },
};
const defaultBase: Table = { model, env: [environment] };

/** Fields that mean something only beside others, and what those are. */
const beside: Readonly<Record<string, Table>> = {
  'buffer.easy_fraction': { buffer: { easy_threshold: 0.9 } },
  'buffer.hard_fraction': { buffer: { hard_threshold: 0.1 } },
  'env[].buffer.easy_fraction': { buffer: { easy_threshold: 0.9 } },
  'env[].buffer.hard_fraction': { buffer: { hard_threshold: 0.1 } },
  'sampling.temp_scheduler': { sampling: { temp_scheduler: { start_temperature: 1.5, end_temperature: 0.5 } } },
  'orchestrator.sampling.temp_scheduler': {
    orchestrator: { sampling: { temp_scheduler: { start_temperature: 1.5, end_temperature: 0.5, total_steps: 9 } } },
  },
  'orchestrator.train.sampling.temp_scheduler': {
    orchestrator: {
      train: { sampling: { temp_scheduler: { start_temperature: 1.5, end_temperature: 0.5, total_steps: 9 } } },
    },
  },
  'sft.subset': { sft: { steps: 50, data: 'owner/rows' } },
  'sft.split': { sft: { steps: 50, data: 'owner/rows' } },
  sft: { sft: { steps: 50 } },
  'notify.format': { notify: { webhook: 'http://localhost:1' } },
  'notify.secret_var': { notify: { webhook: 'http://localhost:1' } },
  'notify.private': { notify: { webhook: 'http://localhost:1' } },
  gepa: { gepa: { reflection_model: 'm', url: 'http://127.0.0.1:9/v1' } },
  'teacher.demonstration': { loss: 'opd', teacher: { demonstration: 'answer' } },
  'teacher.template': { loss: 'opd', teacher: { demonstration: 'answer' } },
  teacher: { loss: 'sft', teacher: { model: 'big', url: 'http://localhost:9' } },
  'env[].loss': { loss: 'opd', teacher: { model: 'big', url: 'http://localhost:9' } },
  'difficulty_filter.enabled': { difficulty_filter: { min_reward: 0.4 } },
};
const multiNode: Table = { deployment: { type: 'multi_node', num_train_nodes: 1 }, slurm: {} };
const ofNodes: typeof beside = {
  'deployment.gpus_per_node': multiNode,
  'deployment.num_train_nodes': multiNode,
  'deployment.num_infer_nodes': multiNode,
  'deployment.num_infer_replicas': multiNode,
};
const pooled: Table = {
  orchestrator: {
    train: {
      source: [{ env: { taskset: { id: 'owner/gsm8k' } }, curriculum: { sampler: { type: 'difficulty_pool' } } }],
    },
  },
};
const pooledBeside: Table = {
  orchestrator: {
    train: { source: [{ env: { taskset: { id: 'owner/gsm8k' } }, sampler: { type: 'difficulty_pool' } }] },
  },
};
const hostedTeacher: typeof beside = {
  teacher: { loss: 'sft', teacher: { model: 'big', client: { base_url: 'http://localhost:9' } } },
};
/** Settings of a vLLM that is started do not apply to servers of other kinds. */
const vllm = (...keys: string[]): typeof beside =>
  Object.fromEntries(
    keys.map((key) => [`inference.${key}`, { inference: { kind: 'vllm', api_key_var: 'A_KEY' }, lora: {} }]),
  );
const ofVllm: typeof beside = { 'inference.server.port': { ratchet: { inference: { kind: 'vllm' } } } };
/** Settings of an agent, which the environment beside them has to be. */
const agent: Table = { id: 'repair', kind: 'agent', command: ['run'], tasks: './tasks.jsonl', score: { command: ['score'] } }; // prettier-ignore
const judged: Table = { base_url: 'http://localhost:1', model: 'big', prompt: 'how good it is' };
const besideAgent = (table: string, entry: Table): typeof beside => {
  const under = (own: Table): Table => (table === 'env' ? { env: [own] } : { eval: { env: [own] } });
  return {
    [`${table}[].score.function`]: under({ ...entry, score: {} }),
    [`${table}[].score.judge`]: under({ ...entry, score: { judge: judged } }),
    ...Object.fromEntries(
      ['subset', 'split'].map((key) => [`${table}[].${key}`, under({ ...entry, tasks: 'owner/tasks' })]),
    ),
    ...Object.fromEntries(
      'command tasks eval_tasks eval_share deterministic turn_timeout tool_timeout exit_codes sandbox score'
        .split(' ')
        .map((key) => [`${table}[].${key}`, under(entry)]),
    ),
    [`${table}[].resume`]: under({ ...entry, resume: { command: ['go', 'on'] } }),
    [`${table}[].models[]`]: under({ ...entry, models: [{ name: 'helper', base_url: 'http://localhost:1' }] }),
    [`${table}[].kind`]: under(entry),
  };
};
const besideIn: Readonly<Record<string, typeof beside>> = {
  hosted: hostedTeacher,
  'hosted-0.6.35': hostedTeacher,
  ratchet: {
    ...vllm('gpus', 'gpu_ids', 'vllm', 'program', 'port', 'host', 'weights', 'weights_agent'),
    data: { env: [], data: { name: 'owner/rows' } },
    'cost.models[]': { cost: { models: [{ name: 'helper', prompt: 1, completion: 1 }] } },
    ...besideAgent('env', agent),
    ...besideAgent('eval.env', agent),
  },
  'prime-rl-sft': {
    ...ofVllm,
    eval: { eval: { source: [{ env: { taskset: { id: 'owner/gsm8k' } } }] } },
  },
  'prime-rl-0.4': { ...ofVllm, ...ofNodes },
  'prime-rl': {
    ...ofVllm,
    'orchestrator.eval': { orchestrator: { eval: { source: [{ env: { taskset: { id: 'owner/gsm8k' } } }] } } },
    ...ofNodes,
    'orchestrator.train.source[].curriculum.sampler.pools': pooled,
    'orchestrator.train.source[].sampler.pools': pooledBeside,
    'orchestrator.use_sft_loss': {
      orchestrator: { teacher_rollout_model: { name: 'big', base_url: 'http://localhost:9' } },
    },
    'orchestrator.model.lora': { trainer: { model: { lora: {} } } },
  },
};
const besideOf = (dialect: Dialect, field: string): Table =>
  Object.entries({ ...beside, ...besideIn[dialect.name] }).find(
    ([start]) => field === start || field.startsWith(`${start}.`),
  )?.[1] ?? {};

/** The same argument in another of its places would be refused. */
function withoutTwins(base: Table, field: string): Table {
  const name = field.split('.').at(-1)!;
  const isArgument = /^(?:trainer\.)?(?:args\.)?\w+$/.test(field) && valueAt(base, ['trainer', 'args']) !== undefined;
  return isArgument && name !== 'model'
    ? without(without(without(base, name), `trainer.${name}`), `trainer.args.${name}`)
    : base;
}

/** Every value that is tried for a field, by what its schema is. */
function candidates(schema: z.ZodType): unknown[] {
  const enums = schema instanceof z.ZodEnum ? schema.options : [];
  const literals = schema instanceof z.ZodLiteral ? [...schema.values] : [];
  const inner = schema instanceof z.ZodUnion ? (schema.options as z.ZodType[]).flatMap(candidates) : [];
  const items = schema instanceof z.ZodArray ? candidates(schema.element as z.ZodType).map((item) => [item]) : [];
  const plain = [
    true,
    false,
    0.25,
    3,
    4,
    2,
    1,
    0,
    -1,
    16,
    5000,
    'other/name',
    'gibberish',
    'so: {demonstration}',
    'other',
    'A_KEY',
    'NOTIFY_KEY',
    'mine',
    'agent',
    './rows.jsonl',
    './code.ts',
    'http://localhost:1',
    's3://bucket/x',
  ];
  return [
    ...enums,
    ...literals,
    ...inner,
    ...items,
    ...plain,
    ['q_proj'],
    { other: 1 },
    { other: 'A_KEY' },
    { max_retries: 4 },
    { id: 'other' },
    { taskset: { id: 'other' } },
    { zero: { type: 'advantage_range' } },
    {
      easy: { threshold: 0.9, weight: 0.1 },
      normal: { threshold: 0.5, weight: 1 },
      hard: { threshold: 0.2, weight: 0.1 },
    },
    [{ type: 'gibberish' }],
  ];
}

function fieldsOf(dialect: Dialect): [string, z.ZodType][] {
  if (dialect.schema === undefined) {
    return Object.entries(dialect.fields).flatMap(([at, { schema, fate }]): [string, z.ZodType][] =>
      fate.kind === 'refused' ? [] : [[at, schema]],
    );
  }
  const tables = tablesOf(dialect.schema);
  const lists = new Set([
    'env',
    'eval.env',
    'env.models',
    'eval.env.models',
    'cost.models',
    'pre_batch_filters',
    'post_batch_filters',
  ]);
  return [...tables].flatMap(([table, keys]) =>
    keys
      .filter((key) => !tables.has(table === '' ? key : `${table}.${key}`))
      .map((key): [string, z.ZodType] => {
        const parts = table === '' ? [] : table.split('.');
        const at = parts.map((part, i) => (lists.has(parts.slice(0, i + 1).join('.')) ? `${part}[]` : part));
        return [[...at, key].join('.'), z.unknown()];
      }),
  );
}

interface Read {
  readonly ok: boolean;
  readonly meaning: string;
  readonly wrong: readonly string[];
}

/** Without a field a file is the same whatever the field was tried with: each text is read once. */
function createReader(dialect: Dialect): (table: Table) => Read {
  const known = new Map<string, Read>();
  return (table) => {
    const text = stringify(table);
    const before = known.get(text);
    if (before) return before;
    const parsed = parseRunConfig(text, { file: 'run.toml', dialect: dialect.name });
    const meaning = JSON.stringify(parsed.ok ? [parsed.spec, parsed.warnings, parsed.resumeStep] : parsed.problems);
    const read = { ok: parsed.ok, meaning, wrong: parsed.ok ? [] : parsed.problems.map((problem) => problem.path) };
    known.set(text, read);
    return read;
  };
}

/** Makes the container of a field: the first item of a list. */
function withField(base: Table, field: string, value: unknown): Table {
  const table = copied(base);
  const at = field.split('.').flatMap((part) => (part.endsWith('[]') ? [part.slice(0, -2), 0] : [part]));
  const list = at.lastIndexOf(0);
  const item = list === -1 ? undefined : valueAt(table, at.slice(0, list + 1));
  if (list !== -1 && !Array.isArray(valueAt(table, at.slice(0, list)))) setAt(table, at.slice(0, list), []);
  const isNew = list !== -1 && !isTable(item);
  if (isNew)
    setAt(
      table,
      at.slice(0, list + 1),
      field.includes('_filters[]')
        ? { type: /token_id|logprob/.test(field) ? 'gibberish' : 'repetition' }
        : field.endsWith('].id') || field.includes('taskset')
          ? {}
          : { id: 'owner/other' },
    );
  setAt(table, at, value);
  return field.endsWith('.taskset') ? without(table, field.replace('taskset', 'id')) : table;
}

function without(table: Table, field: string): Table {
  const copy = copied(table);
  const at = field.split('.').flatMap((part) => (part.endsWith('[]') ? [part.slice(0, -2), 0] : [part]));
  const parent = valueAt(copy, at.slice(0, -1));
  if (isTable(parent)) delete parent[String(at.at(-1))];
  return copy;
}

function merged(base: Table, more: Table): Table {
  const table = copied(base);
  for (const [key, value] of Object.entries(more)) {
    const own = table[key];
    table[key] = isTable(own) && isTable(value) ? merged(own, value) : copied(value);
  }
  return table;
}

describe('nothing is accepted and dropped', () => {
  // Ages of prime-rl have one table of fields.
  for (const dialect of dialects.filter(({ name }) => !['prime-rl-0.5', 'prime-rl-0.9'].includes(name))) {
    test(`every field of ${dialect.title} changes the run, or is said to have no effect`, () => {
      const plain = bases[dialect.name] ?? defaultBase;
      const read = createReader(dialect);
      const dropped = fieldsOf(dialect).flatMap(([field]) => {
        const fixed = field.includes('temp_scheduler')
          ? without(plain, field.replace(/temp_scheduler.*/, 'temperature'))
          : plain;
        const base = withoutTwins(merged(fixed, besideOf(dialect, field)), field);
        const schema = dialect.fields[field]?.schema ?? z.unknown();
        const isSeen = candidates(schema).some((value) => {
          if (!schema.safeParse(value).success) return false;
          const written = withField(base, field, value);
          const withIt = read(written);
          const withoutIt = () => read(without(written, field));
          if (withIt.ok) return withIt.meaning !== withoutIt().meaning;
          return withIt.wrong.some((at) => `${at}.`.includes(`${field.split('.').at(-1)!}.`)) && withoutIt().ok;
        });
        return isSeen ? [] : [field];
      });
      assert.deepEqual(dropped, []);
    });

    test(`what ${dialect.title} is known to have and cannot be honoured is refused by name`, () => {
      for (const [field, { fate }] of Object.entries(dialect.fields)) {
        if (fate.kind !== 'refused') continue;
        const written = withField(bases[dialect.name] ?? defaultBase, field, 1);
        const parsed = parseRunConfig(stringify(written), { file: 'run.toml', dialect: dialect.name });
        assert.ok(!parsed.ok, field);
        assert.match(
          parsed.problems.map(({ suggestion }) => suggestion).join('\n'),
          /^known, not supported yet: /m,
          field,
        );
      }
    });
  }
});
