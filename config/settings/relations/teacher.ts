import { inferences, inferenceTraits } from '../../../core/kinds/inference.ts';
import { kindsWith } from '../../../core/kinds/kinds-of.ts';
import { trainers, trainerTraits } from '../../../core/kinds/trainers.ts';
import { secretHeadersIn } from '../../models/model-access.ts';
import { rotate } from '../../toml/report-secrets.ts';
import type { RatchetConfig } from '../index.ts';
import { isByRole, kindOfEnvironment, kindOfLoss, kindsOf, lossSpec } from '../learning.ts';
import { problem, type Relations } from './problem.ts';

/** Requirements of a run with a teacher, and settings that do not apply to it. */
export function* teacherRelations(config: RatchetConfig): Relations {
  yield* askedRelations(config);
  yield* placeRelations(config);
  yield* supervisedRelations(config);
  yield* severalLossesRelations(config);
  const { rollouts_per_example, env } = config;
  const areOwn =
    env.length > 0 && env.every((entry) => (entry.rollouts_per_example ?? kindOfEnvironment(config, entry)) !== 'rl');
  if (kindOfLoss(config) !== 'rl' || rollouts_per_example >= 2 || areOwn || isByRole(config)) return;
  if (config.data !== undefined) return;
  const expected = 'an integer ≥ 2: what a rollout gets is its reward compared with the others of its group';
  yield problem('rollouts_per_example', expected, rollouts_per_example);
}

/** A teacher is configured exactly if something is learned from it. */
function* askedRelations(config: RatchetConfig): Relations {
  const { loss, env, teacher, trainer, sampling } = config;
  if (config.data !== undefined) return; // see data.ts
  const { teacher_tau } = trainer.loss;
  const kinds = kindsOf(config);
  const isAsked = kinds.has('sft') || kinds.has('opd') || (teacher_tau ?? 0) > 0;
  if (isAsked && teacher === undefined) {
    const ofOne = env.findIndex((entry) => entry.loss === 'opd');
    const [at, received] =
      loss !== 'rl' ? ['loss', loss] : ofOne >= 0 ? [`env.${ofOne}.loss`, 'opd'] : ['trainer.loss.teacher_tau', null];
    yield problem(
      [at, 'teacher'],
      'a [teacher] beside it: a model = "FOLDER" of weights, or a model and the url of its server',
      received === null ? `teacher_tau = ${teacher_tau}` : JSON.stringify(received),
    );
    return;
  }
  if (!isAsked) {
    if (teacher === undefined) return;
    const expected =
      'loss = "sft" or loss = "opd" beside it, or [trainer.loss] teacher_tau > 0: nothing is learned from it';
    yield problem(['teacher.model', 'teacher'], expected, `loss = "${loss}"`);
    return;
  }
  if (loss === 'sft') return;
  if (teacher_tau === 0) {
    const expected = 'a number > 0: with 0 nothing is learned from the teacher; rewards alone are loss = "rl"';
    yield problem(['trainer.loss.teacher_tau', 'loss'], expected, 0);
  }
  if (sampling.temperature !== 1) {
    const expected = '1: a teacher’s log probabilities are those of temperature 1, and are compared with the policy’s';
    yield problem(['sampling.temperature', 'loss'], expected, sampling.temperature);
  }
  if (teacher?.sampling !== undefined)
    yield problem(
      'teacher.sampling',
      'nothing, or loss = "sft": this teacher only scores what the policy says',
      'a table',
    );
}

/** Losses of one batch are sums over tokens, which not every trainer can combine. */
function* severalLossesRelations(config: RatchetConfig): Relations {
  const { loss, env, trainer, kl_penalty } = config;
  const [ofEnvironment, echoed] = [
    env.findIndex((entry) => entry.loss !== undefined && entry.loss !== loss),
    env.findIndex((entry) => entry.echo !== undefined),
  ];
  const hasEcho = echoed >= 0 || trainer.echo !== undefined;
  const echoAt = echoed >= 0 ? `env.${echoed}.echo` : 'trainer.echo';
  const lossAt = `env.${ofEnvironment}.loss`;
  if (loss === 'sft') {
    const expected = 'nothing beside loss = "sft": what a teacher played is learned by heart, and nothing else';
    if (ofEnvironment >= 0) yield problem([lossAt, 'loss'], expected, JSON.stringify(env[ofEnvironment]!.loss));
    if (hasEcho) yield problem([echoAt, 'loss'], expected, 'a table');
    return;
  }
  const hasSeveral = kindsOf(config).size > 1;
  const at = hasSeveral ? lossAt : echoAt;
  if (!trainerTraits(trainer).severalLosses && (hasSeveral || hasEcho)) {
    const { names } = kindsWith(trainers, ({ severalLosses }) => severalLosses);
    const expected = `nothing, or kind = ${names}: only these compute several losses of one batch`;
    yield problem([at, 'trainer.kind'], expected, `kind = "${trainer.kind}"`);
  }
  if (config.trajectory_strategy === 'branching' && hasEcho) {
    const expected = 'trajectory_strategy = "interleaved" beside it: a row of one turn has nothing behind that turn';
    yield problem([echoAt, 'trajectory_strategy'], expected, '"branching"');
  }
  if (!hasSeveral) return;
  const { aggregation } = lossSpec(config);
  if (aggregation !== 'token') {
    const expected = 'aggregation = "token" beside it: each loss is over the number of its own tokens';
    yield problem(['trainer.loss.aggregation', 'trainer.loss.type', lossAt], expected, `"${aggregation}"`);
  }
  if ((trainer.loss.teacher_tau ?? 0) > 0) {
    const expected =
      'nothing: environments with loss = "rl" learn from rewards alone where others learn from the teacher';
    yield problem(['trainer.loss.teacher_tau', lossAt], expected, trainer.loss.teacher_tau);
  }
  if (kl_penalty?.enabled === true && kl_penalty.beta > 0) {
    const expected = 'beta = 0 where environments differ in their loss: the divergence is reported, not penalized';
    yield problem(['kl_penalty.beta', 'kl_penalty'], expected, kl_penalty.beta);
  }
}

/** The teacher may be located in only one way. */
function* placeRelations({ teacher, inference, loss }: RatchetConfig): Relations {
  if (teacher === undefined) return;
  if (teacher.demonstration !== undefined) {
    yield* selfRelations(teacher, { inference, loss });
    return;
  }
  if (teacher.template !== undefined) {
    const expected = 'nothing, or a demonstration beside it: the policy is no teacher of its own';
    yield problem(['teacher.template', 'teacher.demonstration'], expected, JSON.stringify(teacher.template));
  }
  const { model, url, endpoint_id, endpoints_path, api_key_var, headers } = teacher;
  for (const name of secretHeadersIn(headers)) {
    const expected = 'no header with a key in it: name its environment variable in api_key_var';
    yield problem([['teacher', 'headers', name], 'teacher.headers'], expected, 'a value (not repeated here)', rotate);
  }
  if (endpoint_id !== undefined) {
    for (const [key, value] of Object.entries({ model, url, api_key_var })) {
      if (value === undefined) continue;
      const expected = 'nothing, or no endpoint_id: the alias says it';
      yield problem([`teacher.${key}`, 'teacher.endpoint_id'], expected, JSON.stringify(value));
    }
    return;
  }
  if (endpoints_path !== undefined) {
    const expected = 'an endpoint_id beside it: which of its aliases is meant';
    yield problem(['teacher.endpoints_path', 'teacher.endpoint_id'], expected, JSON.stringify(endpoints_path));
  }
  if (model === undefined) {
    const expected = 'a model: what its server calls it, or without a url a folder of weights';
    yield problem(['teacher.model', 'teacher'], expected, 'nothing');
  } else if (url === undefined && inferenceTraits(inference).engine !== 'embedded') {
    const expected = `the url of its servers: a folder of weights is held by Ratchet's own policy servers, and [inference] kind is "${inference.kind}"`;
    yield problem(['teacher.url', 'teacher.model', 'inference.kind'], expected, 'nothing');
  }
}

/** A policy as its own teacher has no other place, and only scores. */
function* selfRelations(
  teacher: NonNullable<RatchetConfig['teacher']>,
  { inference, loss }: Pick<RatchetConfig, 'inference' | 'loss'>,
): Relations {
  const { model, url, endpoint_id, endpoints_path, template } = teacher;
  for (const [key, value] of Object.entries({ model, url, endpoint_id, endpoints_path })) {
    if (value === undefined) continue;
    const expected = 'nothing, or no demonstration: with one the policy itself is the teacher';
    yield problem([`teacher.${key}`, 'teacher.demonstration'], expected, JSON.stringify(value));
  }
  if (template !== undefined && !template.includes('{demonstration}')) {
    const expected = 'a text with {demonstration} in it';
    yield problem('teacher.template', expected, JSON.stringify(template));
  }
  if (loss === 'sft') {
    const expected = '"opd": with a demonstration the policy scores what it said itself';
    yield problem(['loss', 'teacher.demonstration'], expected, '"sft"');
  }
  if (!inferenceTraits(inference).scoresPrompts) {
    const expected = `${kindsWith(inferences, ({ scoresPrompts }) => scoresPrompts).names}: the policy’s own servers score its rows`;
    yield problem(['inference.kind', 'teacher.demonstration'], expected, JSON.stringify(inference.kind));
  }
}

/** Cross entropy is one pass over tokens; further settings of policy losses have no meaning for it. */
function* supervisedRelations({ loss, data, trainer, kl_penalty }: RatchetConfig): Relations {
  if (loss !== 'sft' && data === undefined) return;
  const [beside, learned] = data ? ['[data]', 'what is learned of its rows'] : ['loss = "sft"', 'the teacher’s tokens'];
  for (const [key, value] of Object.entries(trainer.loss)) {
    if (value === undefined || (key === 'aggregation' && value === 'token')) continue;
    const expected = `nothing beside ${beside}: its loss is the cross entropy of ${learned}`;
    yield problem([`trainer.loss.${key}`, 'trainer.loss'], expected, JSON.stringify(value));
  }
  if (trainer.num_iterations !== 1)
    yield problem('trainer.num_iterations', `1 beside ${beside}`, trainer.num_iterations);
  if (kl_penalty?.enabled === true && kl_penalty.beta > 0) {
    const expected = `beta = 0 beside ${beside}: the divergence is reported, not penalized`;
    yield problem(['kl_penalty.beta', 'kl_penalty'], expected, kl_penalty.beta);
  }
}
