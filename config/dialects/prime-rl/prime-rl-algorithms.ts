import { describe } from '../../toml/reporter.ts';
import { formatPath, type KeyPath } from '../../toml/positions.ts';
import { isTable, type Table, tableOr, valueAt } from '../../toml/tables.ts';
import type { Found, Own } from '../dialect.ts';
import { found } from './prime-rl-words.ts';

/**
 * prime-rl's algorithms (packages/prime-rl-configs, configs/algorithm.py): the run has one, and a source may override
 * it. An algorithm of all sources is the run's here. If sources differ, each environment has its own.
 */

const kindOf: Readonly<Record<string, 'rl' | 'opd' | 'sft'>> = {
  grpo: 'rl',
  echo: 'rl',
  max_rl: 'rl',
  rae: 'rl',
  hierarchical_grpo: 'rl',
  opd: 'opd',
  opsd: 'opd',
  sft: 'sft',
};
const advantageOf: Readonly<Record<string, string>> = {
  grpo: 'centered',
  echo: 'centered',
  max_rl: 'max_rl',
  rae: 'rae',
  hierarchical_grpo: 'hierarchical_grpo',
};

/** Keys beside the type of an algorithm with rewards. */
const keysOf: Readonly<Record<string, readonly string[]>> = {
  grpo: ['length_penalty'],
  echo: ['length_penalty', 'roles', 'filter'],
  max_rl: [],
  rae: ['decay'],
  hierarchical_grpo: ['episode_agents'],
};

type Algorithm = Table & { readonly type: string };
interface Said {
  readonly algorithm: Algorithm;
  readonly at: KeyPath;
}

const runsPlace: KeyPath = ['orchestrator', 'algo'];

/** Defaults since autumn 2026 for a group's mean and the weights of its tokens. */
const defaultOfGroups: Readonly<Record<string, unknown>> = {
  loss_aggregation: 'token',
  length_weighted_baseline: false,
};

/** Drops keys that repeat the type's defaults. */
function algorithmIn(said: unknown): Algorithm {
  const { type = 'grpo', sampling, length_penalty: penalty, ...more } = tableOr(said);
  const samplesItself = sampling === undefined || JSON.stringify(sampling) === '{"source":"policy"}';
  const others = Object.entries(more).filter(([key, value]) => defaultOfGroups[key] !== value);
  return {
    type: typeof type === 'string' ? type : JSON.stringify(type),
    ...(penalty === undefined || penalty === null ? {} : { length_penalty: penalty }),
    ...Object.fromEntries(others),
    ...(samplesItself ? {} : { sampling }),
  };
}

function ofSources(written: Table): Said[] {
  const ofRun: Said = { algorithm: algorithmIn(found(written, 'orchestrator.algo')?.value), at: runsPlace };
  const at = ['orchestrator', 'train', 'source'];
  const sources = valueAt(written, at);
  if (!Array.isArray(sources) || sources.length === 0) return [ofRun];
  return sources.map((source, i) => {
    const said = tableOr(source)['algo'];
    return said === undefined ? ofRun : { algorithm: algorithmIn(said), at: [...at, i, 'algo'] };
  });
}

function isOne(all: readonly Said[]): boolean {
  return all.every(({ algorithm }) => JSON.stringify(algorithm) === JSON.stringify(all[0]!.algorithm));
}

/** The algorithm that all sources share; if they differ, one with rewards. `taughtBy` gives the teacher's. */
export function algorithmOfRun(written: Table): Found | undefined {
  const all = ofSources(written);
  const { at } = isOne(all) ? all[0]! : defaultOf(all);
  const value = valueAt(written, at);
  return value === undefined ? undefined : { value, at };
}

/** The run's own algorithm if sources differ and it has rewards, else the first with rewards. */
function defaultOf(all: readonly Said[]): Said {
  const rewarded = all.filter(({ algorithm }) => kindOf[algorithm.type] === 'rl');
  return rewarded.find(({ at }) => at === runsPlace) ?? rewarded[0] ?? all[0]!;
}

/** The algorithm that names the teacher, if sources differ; undefined if they share one, or none has a teacher. */
export function taughtBy(written: Table): Found | undefined {
  const all = ofSources(written);
  const taught = isOne(all) ? undefined : all.find(({ algorithm }) => kindOf[algorithm.type] === 'opd');
  return taught && { value: valueAt(written, taught.at), at: taught.at };
}

/** Whether each trained agent of an episode is a sample, compared by its role. */
export function isByRole(written: Table): boolean {
  return isOne(ofSources(written)) && isOfRoles(ofSources(written)[0]!.algorithm);
}

function isOfRoles({ type }: Algorithm): boolean {
  return type === 'rae' || type === 'hierarchical_grpo';
}

/** If sources differ, sets the algorithm of each that is not the run's. */
export function setOwnAlgorithms(written: Table, own: Own): void {
  const all = ofSources(written);
  if (isOne(all)) return;
  const byRole = all.find(({ algorithm }) => isOfRoles(algorithm));
  if (byRole) {
    const { algorithm, at } = byRole;
    const expected = `the same algo of all sources, or another than ${algorithm.type}: roles of agents are told apart in all environments of a run, or in none`;
    own.refuse({ paths: [at], expected, received: JSON.stringify(algorithm) });
    return;
  }
  const fallback = defaultOf(all);
  const isPlayed = all.every(({ algorithm }) => kindOf[algorithm.type] === 'sft');
  const teaching = all.find(({ algorithm }) => isPlayed || kindOf[algorithm.type] === 'opd');
  for (const [i, said] of all.entries()) {
    const { algorithm, at } = said;
    const kind = kindOf[algorithm.type];
    const received = JSON.stringify(algorithm);
    if (kind === 'rl') setOfRewards(own, said, { fallback, ours: ['env', i] });
    else if (kind !== 'opd' && !isPlayed) own.refuse({ paths: [at], expected: insteadOf(algorithm.type), received });
    else if (received !== JSON.stringify(teaching!.algorithm)) {
      const expected = `${JSON.stringify(teaching!.algorithm)}, as another source has it: the sources of a run learn from one teacher here`;
      own.refuse({ paths: [at], expected, received });
    } else if (kind === 'opd') own.set(['env', i, 'loss'], 'opd', at);
  }
}

function setOfRewards(
  own: Own,
  said: Said,
  { fallback, ours }: { readonly fallback: Said; readonly ours: KeyPath },
): void {
  const { algorithm, at } = said;
  if (!isUnderstood(own, said)) return;
  const advantage = advantageOf[algorithm.type];
  if (advantage !== advantageOf[fallback.algorithm.type]) own.set([...ours, 'advantage'], advantage, at);
  if (algorithm.type === 'echo') setEcho(own, said, [...ours, 'echo']);
  const [penalty, ofRun] = [algorithm, fallback.algorithm].map((one) => JSON.stringify(one['length_penalty'] ?? null));
  if (penalty === ofRun || algorithm.type === 'max_rl') return;
  const expected = `length_penalty = ${ofRun}, as another source has it: lengths count alike in all groups of a run`;
  own.refuse({ paths: [at], expected, received: JSON.stringify(algorithm) });
}

/** Sets the run's algorithm with rewards. */
export function setAlgorithm(written: Table, own: Own): void {
  const algo = algorithmOfRun(written);
  if (!algo) return;
  const said: Said = { algorithm: algorithmIn(algo.value), at: algo.at };
  const { type, length_penalty: penalty } = said.algorithm;
  if (kindOf[type] === 'opd' || kindOf[type] === 'sft') return; // see prime-rl-teacher.ts
  if (!isUnderstood(own, said)) return;
  if (type === 'max_rl') own.set(['trainer', 'advantage', 'type'], 'max_rl', algo.at);
  if (isOfRoles(said.algorithm)) setRoles(own, said);
  if (type === 'echo' && isOne(ofSources(written))) setEcho(own, said, ['trainer', 'echo']);
  if (penalty !== undefined) setLengthPenalty(own, penalty, algo.at);
}

function setRoles(own: Own, { algorithm, at }: Said): void {
  const { type, decay, episode_agents: agents } = algorithm;
  const place = ['trainer', 'advantage'];
  own.set([...place, 'type'], type, [...at, 'type']);
  if (decay !== undefined) own.set([...place, 'decay'], decay, [...at, 'decay']);
  if (agents !== undefined) own.set([...place, 'episode_agents'], agents, [...at, 'episode_agents']);
  own.warn(
    `${formatPath(at)}: as in prime-rl each trained agent of an episode is a sample, and batch_size counts samples; a batch ends after the group with which it has so many.`,
  );
}

function isUnderstood(own: Own, { algorithm, at }: Said): boolean {
  const { type, ...more } = algorithm;
  const keys = keysOf[type];
  const other = keys && Object.keys(more).find((key) => !keys.includes(key));
  if (other !== undefined) {
    const fallback = defaultOfGroups[other];
    const expected =
      fallback === undefined
        ? `nothing: an algo of type = "${type}" has ${keys!.join(', ') || 'no further keys'} here`
        : `${JSON.stringify(fallback)}, which is what a run here does`;
    own.refuse({ paths: [[...at, other]], expected, received: JSON.stringify(more[other]) });
    return false;
  }
  if (keys === undefined || (more['length_penalty'] !== undefined && weightsOf(more['length_penalty']) === null)) {
    own.refuse({ paths: [at], expected: insteadOf(type), received: JSON.stringify(algorithm) });
    return false;
  }
  if (more['filter'] === undefined || more['filter'] === null) return true;
  own.refuse({
    paths: [[...at, 'filter']],
    expected:
      'nothing: which messages are learned is said by roles; code of prime-rl that picks their tokens is not called here',
    received: describe(more['filter']),
  });
  return false;
}

const roles = ['system', 'user', 'assistant', 'tool'];

/** EchoRolesConfig: setting any role replaces the whole table, and none of them is off. */
function setEcho(own: Own, { algorithm, at }: Said, ours: KeyPath): void {
  const written = tableOr(algorithm['roles'] ?? { tool: {} });
  const named = Object.entries(written).filter(([, role]) => role !== null);
  const weights = named.map(([role, said]) => [role, tableOr(said)['alpha'] ?? 0.1] as const);
  const areRight = weights.every(([role, alpha]) => roles.includes(role) && typeof alpha === 'number' && alpha > 0);
  if (weights.length === 0 || !areRight) {
    own.refuse({
      paths: [[...at, 'roles']],
      expected: `one of ${roles.join(', ')} at least, each with an alpha > 0`,
      received: JSON.stringify(algorithm['roles']),
    });
    return;
  }
  for (const [role, alpha] of weights) own.set([...ours, role], alpha, [...at, 'roles', role]);
}

/** Weights of prime-rl's LinearLengthPenaltyConfig, with its defaults; null for anything else. */
function weightsOf(penalty: unknown): Table | null {
  if (!isTable(penalty)) return null;
  const { type = 'linear', ...written } = penalty;
  const fallback = { num_output_tokens_weight: 0.25, num_input_tokens_weight: 0.1, num_turns_weight: 0.1 };
  const weights: Table = { ...fallback, ...written };
  const isKnown =
    Object.keys(weights).length === 3 && Object.values(weights).every((one) => typeof one === 'number' && one >= 0);
  return type === 'linear' && isKnown ? weights : null;
}

function setLengthPenalty(own: Own, penalty: unknown, at: KeyPath): void {
  const weights = weightsOf(penalty)!;
  const ours = {
    output_tokens: 'num_output_tokens_weight',
    input_tokens: 'num_input_tokens_weight',
    turns: 'num_turns_weight',
  };
  for (const [key, theirs] of Object.entries(ours)) own.set(['trainer', 'length_penalty', key], weights[theirs], at);
}

/** The nearest alternative to an algorithm that is missing here, or cannot be combined. */
function insteadOf(type: string): string {
  const known: Readonly<Record<string, string>> = {
    sft: 'an algorithm of rewards, "opd" or "opsd": where one source learns by heart what a teacher played, all of them do',
    rae: 'type = "rae" with a decay, or with nothing',
    hierarchical_grpo: 'type = "hierarchical_grpo" with episode_agents = ["solver"], and nothing else',
  };
  const others =
    'type = "grpo" or "echo" with a length_penalty of type "linear" or none, "max_rl", "rae", "hierarchical_grpo", "opd", "opsd" or "sft"';
  return known[type] ?? others;
}
