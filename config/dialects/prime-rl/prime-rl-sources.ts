import { poolFractionMin } from '../../../core/limits.ts';
import { present } from '../../../core/present.ts';
import { formatPath, type KeyPath } from '../../toml/positions.ts';
import { copied, isTable, merged, setAt, type Table, tableOr, valueAt } from '../../toml/tables.ts';
import type { Found, Own } from '../dialect.ts';
import { placed, placesOf } from '../places.ts';
import { setAgent } from '../limit-words.ts';
import { sayWholeGroups, setExtraBody } from '../common-words.ts';
import { isByRole, setOwnAlgorithms } from './prime-rl-algorithms.ts';
import { refuseGroupOfOne, setAnswerLimit, setRatios } from './prime-rl-meaning.ts';
import { teachesAlone } from './prime-rl-teacher.ts';
import { found, take } from './prime-rl-words.ts';

/** `[[orchestrator.train.source]]` and `[[orchestrator.eval.source]]` in our own words. */
export function setSources(written: Table, own: Own): void {
  const train = sourcesAt(written, ['orchestrator', 'train', 'source']);
  const gated: KeyPath[] = [];
  for (const [i, source] of train.entries()) {
    setEnvironment(own, source, ['env', i]);
    if (!isByRole(written)) refuseSeveralPolicies(own, source);
    if (setCurriculum(own, source, ['env', i])) gated.push(source.at);
    refuseOwnAdvantage(own, source);
  }
  setOwnAlgorithms(written, own);
  if (gated.length > 0) dropWithoutAdvantage(own, { gated, count: train.length });
  setGroupSizes(written, own, train);
  setSamplings(written, own, train);
  setRatios(written, own, train.length, 'orchestrator.train.source');
  setEvaluated(written, own, 'orchestrator.eval');
  for (const at of [['orchestrator', 'train'], ...train.map((source) => source.at)]) refuseSelection(own, written, at);
}

/** The taskset decides which of its tasks are trained on. */
function refuseSelection(own: Own, written: Table, at: KeyPath, understood: readonly string[] = []): void {
  for (const [key, value] of Object.entries(tableOr(valueAt(written, [...at, 'select'])))) {
    if (understood.includes(key) || isNothing(value)) continue;
    own.refuse({
      paths: [[...at, 'select']],
      expected: 'nothing: the tasks of an environment are all those that it gives; choose among them in its arguments',
      received: `${key} = ${JSON.stringify(value)}`,
    });
  }
}

/** Whether a value selects every task, in order. */
function isNothing(value: unknown): boolean {
  return (
    value === null || value === false || value === 0 || JSON.stringify(value) === '{}' || JSON.stringify(value) === '[]'
  );
}

/** `limit` is the number of tasks in evaluations. */
function setSelection(own: Own, written: Table, { at, ours }: { readonly at: KeyPath; readonly ours: KeyPath }): void {
  refuseSelection(own, written, at, ['limit']);
  const limit = valueAt(written, [...at, 'select', 'limit']);
  if (typeof limit === 'number') own.set([...ours, 'num_examples'], limit, [...at, 'select', 'limit']);
}

/** Merges `[PATH.env]`, shared by all sources since autumn 2026, into their own `env`. */
export function withSharedEnv(written: Table, path: readonly string[]): Table {
  const { env, source } = tableOr(valueAt(written, path));
  if (!isTable(env) || !Array.isArray(source)) return written;
  const table = copied(written);
  const each = source.map((one: unknown) => (isTable(one) ? { ...one, env: merged(env, tableOr(one['env'])) } : one));
  setAt(table, [...path, 'source'], each);
  return table;
}

/** The sources of a table of evaluations. */
export function setEvaluated(written: Table, own: Own, table: string): void {
  const evaluation = found(written, table);
  if (!evaluation) return;
  const held = sourcesAt(written, [...evaluation.at, 'source']);
  setSelection(own, written, { at: evaluation.at, ours: ['eval'] });
  for (const [i, source] of held.entries()) {
    setEnvironment(own, source, ['eval', 'env', i]);
    setSelection(own, written, { at: source.at, ours: ['eval', 'env', i] });
  }
  if (held.length === 0) {
    const expected = `at least one [[${table}.source]], or no [${table}] at all`;
    own.refuse({ paths: [[...evaluation.at, 'source']], expected, received: 'nothing' });
  }
}

function sourcesAt(written: Table, at: KeyPath): Found[] {
  const sources = valueAt(written, at);
  return Array.isArray(sources) ? sources.map((value, i) => ({ value, at: [...at, i] })) : [];
}

/** `env = { taskset = { id, … }, agent = … }`, or `id` and `args` in the form until 0.8. */
function setEnvironment(own: Own, { value, at }: Found, ours: KeyPath): void {
  const source = value as Table;
  const { taskset, agent, ...rest } = tableOr(source['env']);
  if (isTable(taskset)) setTaskset(own, { table: taskset, from: [...at, 'env', 'taskset'], ours });
  setAgent(own, { table: tableOr(agent), from: [...at, 'env', 'agent'], ours });
  setEpisode(own, { table: rest, from: [...at, 'env'], ours });
  refuseUnservedModels(own, source['env'], [...at, 'env']);
  setOlderEnvironment(own, { table: source, from: at, ours });
  if (source['id'] !== undefined) {
    own.warn(
      `${formatPath(at)}.id is an older way: prime-rl writes env = { taskset = { id = ${JSON.stringify(source['id'])} } } since 0.8.1. It is read as that.`,
    );
  }
  if (own.get([...ours, 'id']) !== undefined) return;
  own.refuse({
    paths: [[...at, 'env']],
    expected: 'env = { taskset = { id = "…" } }: which environment it is',
    received: 'nothing',
  });
  own.set([...ours, 'id'], 'x');
}

function setTaskset(own: Own, { table: { id, ...args }, from, ours }: Parameters<typeof setAgent>[1]): void {
  if (id !== undefined) own.set([...ours, 'id'], id, [...from, 'id']);
  if (Object.keys(args).length > 0) own.set([...ours, 'args'], args, from);
}

/**
 * Until 0.8 the contents of `env` were in the source itself, the runtime in its harness, and limits were stages of an
 * episode.
 */
function setOlderEnvironment(own: Own, { table, from, ours }: Parameters<typeof setAgent>[1]): void {
  const { taskset, harness, timeout, retries } = table;
  if (isTable(taskset)) setTaskset(own, { table: taskset, from: [...from, 'taskset'], ours });
  const { runtime, ...program } = tableOr(harness);
  const rollouts = isTable(retries) && isTable(retries['rollout']) ? retries['rollout'] : retries;
  const agent: Table = {
    ...present({ harness: Object.keys(program).length > 0 ? program : undefined, runtime, timeout, retries: rollouts }),
  };
  setAgent(own, { table: agent, from, ours });
  const older = ['taskset', 'harness'].filter((key) => table[key] !== undefined);
  if (older.length === 0) return;
  own.warn(
    `${formatPath(from)}: ${older.join(' and ')} in the source itself ${older.length > 1 ? 'are' : 'is'} an older way: prime-rl writes env = { taskset = { … }, agent = { harness = { … }, runtime = { … } } } since 0.8.1. It is read as that.`,
  );
}

/** Settings of whole episodes: limits, further agents by role, and those of the environment itself. */
function setEpisode(own: Own, { table, from, ours }: Parameters<typeof setAgent>[1]): void {
  const { timeout, retries, id, max_concurrent_agents: atOnce, interception, ...others } = table;
  setAgent(own, {
    table: present({ timeout, retries }),
    from,
    ours,
  });
  const kept = { id: id === '' ? undefined : id, max_concurrent_agents: atOnce, interception, ...others };
  for (const [key, value] of Object.entries(kept)) {
    if (value !== undefined) own.set([...ours, 'episode', key], value, [...from, key]);
  }
}

/**
 * An agent with an endpoint of its own is not trained. There may be only one other agent, unless roles are
 * distinguished.
 */
function refuseSeveralPolicies(own: Own, { value, at }: Found): void {
  const policies = policiesOf((value as Table)['env']);
  if (policies.length <= 1 || policies.some(([, agent]) => tableOr(agent)['model'] !== undefined)) return;
  own.refuse({
    paths: policies.slice(1).map(([role]) => [...at, 'env', role]),
    expected: `a model and a client = { base_url = "…" }, an endpoint that is not trained: without algo = { type = "rae" } or "hierarchical_grpo" one agent of an episode is the policy, ${policies[0]![0]}`,
    received: JSON.stringify(policies[1]![1]),
  });
}

function refuseUnservedModels(own: Own, env: unknown, from: KeyPath): void {
  const renamed = policiesOf(env).find(([, agent]) => tableOr(agent)['model'] !== undefined);
  if (!renamed) return;
  own.refuse({
    paths: [[...from, renamed[0], 'model']],
    expected: 'a client beside it, client = { base_url = "…" }: without one an agent is the policy',
    received: JSON.stringify(tableOr(renamed[1])['model']),
  });
}

/** Listed agents without an endpoint of their own. */
function policiesOf(env: unknown): [role: string, agent: unknown][] {
  const agents = Object.entries(tableOr(env)).filter(([role, value]) => role === 'agent' || isAgent(value));
  return agents.filter(([, value]) => tableOr(value)['client'] === undefined);
}

/** Recognizes verifiers' tables of agents among an environment's other tables. */
export function isAgent(value: unknown): value is Table {
  return isTable(value) && ['harness', 'runtime', 'model', 'client'].some((key) => key in value);
}

/** A size that all sources state is that of all groups; prime-rl's default is 1. */
function setGroupSizes(written: Table, own: Own, sources: readonly Found[]): void {
  const all = found(written, 'orchestrator.group_size');
  const sizes = (sources.length === 0 ? [{ value: {}, at: [] }] : sources).map(({ value, at }) => {
    const size = (value as Table)['group_size'];
    return size === undefined ? all : { value: size, at: [...at, 'group_size'] };
  });
  const isOne = sizes.every((size) => size?.value === sizes[0]?.value);
  const isAlone = (i: number): boolean =>
    teachesAlone(written) || own.get(['env', i, 'loss']) === 'opd' || isByRole(written);
  const tooSmall = sizes.findIndex((size, i) => Number(size?.value ?? 1) < 2 && !isAlone(i));
  if (tooSmall >= 0) {
    refuseGroupOfOne(own, sizes[tooSmall], 'orchestrator.group_size');
    return;
  }
  const fallback = isOne ? sizes[0] : all;
  own.set(['rollouts_per_example'], fallback?.value ?? 1, fallback?.at);
  for (const [i, size] of sizes.entries()) {
    if (!isOne && size !== all) own.set(['env', i, 'rollouts_per_example'], size?.value, size?.at);
  }
  if (isOne) return;
  const [batch, first] = [found(written, 'orchestrator.batch_size'), sizes.find((size) => size !== all)!];
  const size = Number(all?.value ?? 1);
  if (batch && Number(batch.value) % size !== 0) {
    const expected = `a multiple of orchestrator.group_size (${size})`;
    own.refuse({ paths: [batch.at], expected, received: String(batch.value) });
  }
  sayWholeGroups(own, first.at);
}

/** Request fields that prime-rl sets itself. */
export const sentAnyway: Readonly<Record<string, string>> = {
  temperature: 'write orchestrator.train.sampling.temperature',
  max_tokens: 'write orchestrator.train.sampling.max_completion_tokens',
  max_completion_tokens: 'write orchestrator.train.sampling.max_completion_tokens',
  top_p: 'write [ratchet.sampling] top_p',
  logprobs: 'leave it out: they are always asked for',
  n: 'leave it out: every rollout is a request of its own',
};

/** Sampling of the run and its evaluations. */
export function setSampling(
  written: Table,
  own: Own,
  version: { readonly sampling: string; readonly answers: string },
): void {
  const at = version.sampling.split('.');
  const tokens = found(written, `${version.sampling}.${version.answers}`);
  for (const key of ['temperature', 'top_p', 'top_k'])
    take(written, own, `${version.sampling}.${key}`, ['sampling', key]);
  if (tokens) setAnswerLimit(own, ['sampling'], tokens.value, tokens.at);
  setExtraBody(own, written, { at, ours: ['sampling'], sent: sentAnyway });
  for (const path of ['orchestrator.eval.sampling', 'orchestrator.eval.source[].sampling']) {
    const ours = path.includes('[]') ? 'eval.env[].sampling' : 'eval.sampling';
    for (const each of placesOf(path, written)) setExtraBody(own, written, { at: each, ours: placed(ours, each) });
  }
}

/** The sampling of a single source is the run's; several keep their own. */
function setSamplings(written: Table, own: Own, sources: readonly Found[]): void {
  for (const [i, { value, at }] of sources.entries()) {
    const sampling = (value as Table)['sampling'];
    if (!isTable(sampling)) continue;
    const { max_completion_tokens: tokens } = sampling;
    const from = [...at, 'sampling'];
    const ours = sources.length === 1 ? ['sampling'] : ['env', i, 'sampling'];
    for (const key of ['temperature', 'top_p', 'top_k']) {
      if (sampling[key] !== undefined) own.set([...ours, key], sampling[key], [...from, key]);
    }
    if (tokens !== undefined) setAnswerLimit(own, ours, tokens, [...from, 'max_completion_tokens']);
    setExtraBody(own, written, { at: from, ours, sent: sentAnyway });
  }
}

/** Pools called hard, normal and easy become ours. Returns whether a gate rejects groups without any advantage. */
function setCurriculum(own: Own, { value, at }: Found, ours: KeyPath): boolean {
  const { curriculum, sampler: direct } = value as Table;
  if (tableOr(direct)['type'] === 'difficulty_pool') setPools(own, tableOr(direct)['pools'], [...at, 'sampler'], ours);
  if (!isTable(curriculum)) return false;
  const place = [...at, 'curriculum'];
  const sampler = isTable(curriculum['sampler']) ? curriculum['sampler'] : {};
  if (sampler['type'] === 'difficulty_pool') setPools(own, sampler['pools'], [...place, 'sampler'], ours);
  const gates = isTable(curriculum['gates']) ? curriculum['gates'] : {};
  let isGated = false;
  for (const [name, gate] of Object.entries(gates)) {
    const { type = 'advantage_range', reject_min: low = 0, reject_max: high = 0 } = isTable(gate) ? gate : {};
    if (type === 'advantage_range' && low === 0 && high === 0) {
      isGated = true;
      continue;
    }
    own.refuse({
      paths: [[...place, 'gates', name]],
      expected: 'type = "advantage_range" from 0 to 0: groups without any advantage are dropped, others are kept',
      received: `${JSON.stringify(type)} from ${String(low)} to ${String(high)}`,
    });
  }
  return isGated;
}

/** prime-rl replaces groups that a gate rejects; here this applies to one environment's gate as to all. */
function dropWithoutAdvantage(own: Own, { gated, count }: { gated: readonly KeyPath[]; count: number }): void {
  const at = [...gated[0]!, 'curriculum', 'gates'];
  if (own.get(['difficulty_filter', 'keep_equal']) !== true) {
    own.warn(
      `${formatPath(at)} has no effect: groups without any advantage leave their place in a batch to others anyway.`,
    );
    return;
  }
  own.set(['difficulty_filter', 'keep_equal'], false, at);
  if (gated.length === count) return;
  own.warn(
    `${formatPath(gated[0]!)} has a gate that rejects groups without any advantage: here such groups of every environment leave their place in a batch to others.`,
  );
}

const defaultPools: Table = {
  hard: { threshold: 0.25, weight: 0.2 },
  normal: { threshold: 0.75, weight: 1 },
  easy: { threshold: 1, weight: 0.2 },
};

/**
 * A mean reward belongs to the first pool whose threshold it does not exceed; weights are relative to normal examples.
 */
function setPools(own: Own, written: unknown, at: KeyPath, ours: KeyPath): void {
  const pools = isTable(written) ? written : defaultPools;
  const pool = (name: string): { threshold: number; weight: number } | undefined => {
    const { threshold, weight } = (isTable(pools[name]) ? pools[name] : {}) as {
      threshold?: unknown;
      weight?: unknown;
    };
    return typeof threshold === 'number' && typeof weight === 'number' ? { threshold, weight } : undefined;
  };
  const [hard, normal, easy] = ['hard', 'normal', 'easy'].map(pool);
  const others = Object.keys(pools).filter((name) => !['hard', 'normal', 'easy'].includes(name));
  const weightOf = (weight: number): number => (normal ? weight / normal.weight : Number.NaN);
  const isOurs = (share: number): boolean => share === 0 || (share >= poolFractionMin && share <= 1);
  const fits = hard && normal && easy && hard.threshold < normal.threshold && normal.threshold < easy.threshold;
  if (!fits || others.length > 0 || !isOurs(weightOf(hard.weight)) || !isOurs(weightOf(easy.weight))) {
    own.refuse({
      paths: [[...at, 'pools'], at],
      expected: 'pools hard, normal and easy with rising thresholds, and weights of which normal’s is the largest',
      received: `pools ${Object.keys(pools).join(', ')}`,
    });
    return;
  }
  const buffer = [...ours, 'buffer'];
  own.set([...buffer, 'hard_threshold'], hard.threshold, [...at, 'pools']);
  own.set([...buffer, 'hard_fraction'], weightOf(hard.weight), [...at, 'pools']);
  own.set([...buffer, 'easy_threshold'], justAbove(normal.threshold), [...at, 'pools']);
  own.set([...buffer, 'easy_fraction'], weightOf(easy.weight), [...at, 'pools']);
}

/** The next larger number: our pool is easy from its threshold on, prime-rl's above it. */
function justAbove(threshold: number): number {
  const bits = new BigInt64Array(new Float64Array([threshold === 0 ? 0 : threshold]).buffer);
  bits[0]! += threshold < 0 ? -1n : 1n;
  return new Float64Array(bits.buffer)[0]!;
}

function refuseOwnAdvantage(own: Own, { value, at }: Found): void {
  const said = (value as Table)['advantage'];
  if (said === undefined || (isTable(said) && Object.keys(said).length === 0)) return;
  const isPlain = isTable(said) && Object.keys(said).join() === 'type' && said['type'] === 'default';
  if (isPlain) return;
  own.refuse({
    paths: [[...at, 'advantage']],
    expected: 'nothing, or type = "default" alone: write it into [orchestrator.advantage], where it is of all sources',
    received: JSON.stringify(said),
  });
}
