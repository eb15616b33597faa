import { describe } from '../../toml/reporter.ts';
import { formatPath, type KeyPath } from '../../toml/positions.ts';
import { isTable, type Table } from '../../toml/tables.ts';
import type { Found, Own } from '../dialect.ts';
import type { Age } from './prime-rl-ages.ts';
import { algorithmOfRun, taughtBy } from './prime-rl-algorithms.ts';
import { found } from './prime-rl-words.ts';

/**
 * prime-rl's sources of learning beside rewards, in the words of its versions: a model that scores the policy's tokens
 * (0.4 and 0.5: teacher_model with trainer.loss.teacher_tau; later training_mode or algo.type "opd"), or one whose
 * rollouts are imitated (teacher_rollout_model, later "sft"). Since July 2026 the policy itself may score, given a
 * demonstration ("opsd").
 */
/** prime-rl 0.4 has no other kinds. */
export function setScoringTeacher(written: Table, own: Own): void {
  const teacher = found(written, 'orchestrator.teacher_model');
  if (teacher) setTeacher(teacher, own);
}

type Kind = 'rl' | 'sft' | 'opd';

/** Since v0.5; "rl" by default. */
function kindOf(written: Table): Kind {
  const algo = algorithmOfRun(written)?.value;
  const isSupervised =
    found(written, 'orchestrator.use_sft_loss')?.value === true || found(written, 'trainer.loss.type')?.value === 'sft';
  const mode = found(written, 'orchestrator.training_mode')?.value ?? (isSupervised ? 'sft' : 'rl');
  const named = (isTable(algo) ? algo['type'] : undefined) ?? mode;
  if (named === 'opsd') return 'opd';
  return named === 'sft' || named === 'opd' ? named : 'rl';
}

/** Whether a single rollout has a learning signal: a teacher's, not a reward relative to its group. */
export function teachesAlone(written: Table): boolean {
  const weight = found(written, 'trainer.loss.teacher_tau')?.value;
  return kindOf(written) !== 'rl' || (typeof weight === 'number' && weight > 0);
}

/** Since v0.5. Returns the kind of run. */
export function setLearning(written: Table, own: Own, age: Age): Kind {
  const mode = found(written, 'orchestrator.training_mode');
  const kind = kindOf(written);
  // If sources differ, the run's loss is that of rewards, and another one names the teacher.
  const algo = taughtBy(written) ?? algorithmOfRun(written);
  const algorithm = isTable(algo?.value) ? algo.value : {};
  const from = algorithm['type'] === kind ? algo?.at : (mode?.at ?? ['trainer', 'loss', 'type']);
  if (kind !== 'rl') own.set(['loss'], kind, from ?? ['orchestrator', 'algo', 'type']);
  const teacher = teacherOf(written, algo, algorithm, kind);
  if (algo && algorithm['type'] === 'opsd') setSelf(algo, own);
  else if (teacher) setTeacher(teacher, own);
  if (kind !== 'rl') dropLossSettings(written, own, kind);
  if (age === 'today' && kind === 'opd') {
    for (const [key, value] of Object.entries(distilledToday)) own.set(['trainer', 'loss', key], value);
  }
  if (age === 'today' && kind === 'rl' && taughtBy(written)) {
    own.warn(
      `${formatPath(taughtBy(written)!.at)}: where other sources learn from rewards, what its teacher teaches has 0.001 · (ln ρ)² beside it here, and no cap of ratios, as in prime-rl until September 2026.`,
    );
  }
  return kind;
}

/** prime-rl's opd since September 2026: without a KL term, its ratios capped. */
const distilledToday = { kl_tau: 0, max_ratio: 1e4 };

/**
 * Distillation has its own loss and ignores `[trainer.loss]`: opd's bounds and weights are constants in prime-rl's
 * source (0.2, and 1e-3 until September 2026; trainer/rl/loss.py, `opd_loss_fn` of 0.6, later `ref_kl_loss_fn`), sft
 * has none.
 */
function dropLossSettings(written: Table, own: Own, kind: 'sft' | 'opd'): void {
  own.set(['trainer', 'loss', 'type'], undefined);
  const loss = found(written, 'trainer.loss');
  for (const key of Object.keys(isTable(loss?.value) ? loss.value : {})) {
    if (!/^(?:dppo|ipo|ratio)_|_tau$|^eps$|^max_importance_ratio$/.test(key)) continue;
    if (key.endsWith('_tau')) own.set(['trainer', 'loss', key], undefined);
    own.warn(`trainer.loss.${key} has no effect: it is no part of the loss of ${kind}.`);
  }
}

function teacherOf(written: Table, algo: Found | undefined, algorithm: Table, kind: string): Found | undefined {
  const source = isTable(algorithm['sampling']) ? algorithm['sampling']['source'] : undefined;
  const inAlgorithm = kind === 'sft' ? source : algorithm['teacher'];
  if (algo && isTable(inAlgorithm)) {
    return { value: inAlgorithm, at: [...algo.at, ...(kind === 'sft' ? ['sampling', 'source'] : ['teacher'])] };
  }
  const places = ['orchestrator.teacher', 'orchestrator.teacher_model', 'orchestrator.teacher_rollout_model'];
  return places.map((place) => found(written, place)).find((one) => one !== undefined);
}

/** OPSDAlgoConfig; its renderer is the policy's: there if it is "auto", here always. */
function setSelf({ value, at }: Found, own: Own): void {
  const { demo_key: key = 'demonstration', template, renderer, sampling, type: _, ...others } = value as Table;
  own.set(['teacher', 'demonstration'], key, [...at, 'demo_key']);
  if (template !== undefined) own.set(['teacher', 'template'], template, [...at, 'template']);
  if (renderer !== undefined) {
    own.warn(
      `${at.join('.')}.renderer has no effect: a demonstration is rendered with the chat template of the policy.`,
    );
  }
  const source = isTable(sampling) ? (sampling['source'] ?? 'policy') : 'policy';
  const rest = { ...others, ...(source === 'policy' ? {} : { 'sampling.source': source }) };
  for (const [name, said] of Object.entries(rest)) {
    own.refuse({
      paths: [[...at, ...name.split('.')]],
      expected: 'demo_key, template and renderer alone: the policy samples, and teaches itself',
      received: JSON.stringify(said),
    });
  }
}

/** A model behind a client, in one table or in two. */
function setTeacher({ value, at }: Found, own: Own): void {
  const table = isTable(value) ? value : {};
  const { model, client, ...flat } = table;
  const said: Table = { ...flat, ...(isTable(client) ? client : {}), ...(isTable(model) ? model : {}) };
  const { name, base_url: url, api_key_var: key, headers, ...others } = said;
  const place = (group: unknown, within: string, field: string): KeyPath =>
    isTable(group) && field in group ? [...at, within, field] : [...at, field];
  if (name === undefined || url === undefined) {
    own.refuse({
      paths: [at],
      expected: 'a name and a base_url: the teacher is a model behind an OpenAI-compatible server',
      received: describe(value),
    });
    return;
  }
  own.set(['teacher', 'model'], name, place(model, 'model', 'name'));
  own.set(['teacher', 'url'], url, place(client, 'client', 'base_url'));
  if (key !== undefined) own.set(['teacher', 'api_key_var'], key, place(client, 'client', 'api_key_var'));
  if (headers !== undefined) own.set(['teacher', 'headers'], headers, place(client, 'client', 'headers'));
  if (Object.keys(others).length > 0) {
    own.warn(
      `${at.join('.')}: ${Object.keys(others).join(', ')} has no effect here: a teacher is asked as any API is.`,
    );
  }
}
