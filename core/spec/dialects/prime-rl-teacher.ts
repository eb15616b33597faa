import { describe } from '../reporter.ts';
import type { KeyPath } from '../positions.ts';
import { isTable, type Table } from '../tables.ts';
import { args } from '../values.ts';
import type { Own } from './dialect.ts';
import { together } from './dialect.ts';
import { found, type Found } from './prime-rl-words.ts';

/**
 * Who prime-rl learns from beside its rewards, in the words of its versions: a model that scores the policy's tokens (0.4 and 0.5:
 * teacher_model with trainer.loss.teacher_tau; later training_mode or algo.type "opd"), or one whose rollouts are learned by heart
 * (teacher_rollout_model, later "sft").
 */
export const teacherField = {
  ...together('`teacher`: `model`, `url`, `api_key_var` and `headers`', args()),
  isNullable: true,
};

/** Of prime-rl 0.4: it has no other kinds. */
export function setScoringTeacher(written: Table, own: Own): void {
  const teacher = found(written, 'orchestrator.teacher_model');
  if (teacher) setTeacher(teacher, own);
  setWeights(written, own);
}

/** Since v0.5. Returns the kind of run, "rl" where nothing else is asked for. */
export function setLearning(written: Table, own: Own): 'rl' | 'sft' | 'opd' {
  const mode = found(written, 'orchestrator.training_mode');
  const algo = found(written, 'orchestrator.algo');
  const algorithm = isTable(algo?.value) ? algo.value : {};
  const isSupervised =
    found(written, 'orchestrator.use_sft_loss')?.value === true || found(written, 'trainer.loss.type')?.value === 'sft';
  const named = algorithm['type'] ?? mode?.value ?? (isSupervised ? 'sft' : 'rl');
  const kind = named === 'sft' || named === 'opd' ? named : 'rl';
  const from = algorithm['type'] === kind ? algo?.at : (mode?.at ?? ['trainer', 'loss', 'type']);
  if (kind !== 'rl') own.set(['loss'], kind, from ?? ['orchestrator', 'algo', 'type']);
  const teacher = teacherOf(written, algo, algorithm, kind);
  if (teacher) setTeacher(teacher, own);
  if (kind !== 'rl') setMasks(written, own, kind);
  setWeights(written, own);
  return kind;
}

/** The loss of distillation is its own: of the default's settings opd has the lower mask, sft has none. */
function setMasks(written: Table, own: Own, kind: 'sft' | 'opd'): void {
  own.set(['trainer', 'loss', 'type'], undefined);
  const loss = found(written, 'trainer.loss');
  for (const [key, value] of Object.entries(isTable(loss?.value) ? loss.value : {})) {
    const at = ['trainer', 'loss', key];
    if (key === 'dppo_mask_low' && kind === 'opd') own.set(['trainer', 'loss', 'mask_low'], value, at);
    else if (/^(?:dppo|ipo)_/.test(key))
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

/** adv_tau and teacher_tau are ours as well, where there is a teacher; else only their usual values mean nothing. */
function setWeights(written: Table, own: Own): void {
  for (const key of ['adv_tau', 'teacher_tau']) {
    const weight = found(written, `trainer.loss.${key}`);
    if (weight) own.set(['trainer', 'loss', key], weight.value, weight.at);
  }
}

/** A model behind a client, said together or one beside the other. */
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
