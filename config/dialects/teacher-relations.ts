import { secretHeadersIn } from '../model-access.ts';
import { rotate } from '../report-secrets.ts';
import type { RatchetConfig } from '../settings/index.ts';
import type { RelationProblem } from './ratchet-relations.ts';

/** What a run that learns from a teacher says of it, and what has no place in such a run. */
export function teacherRelations(config: RatchetConfig): RelationProblem[] {
  return [
    ...askedRelations(config),
    ...placeRelations(config),
    ...supervisedRelations(config),
    ...groupRelations(config),
  ];
}

const at = (...keys: string[]) => ['teacher', ...keys];

/** A teacher is there where something is learned from it. */
function askedRelations({ loss, teacher, trainer, sampling }: RatchetConfig): RelationProblem[] {
  const { teacher_tau } = trainer.loss;
  const isAsked = loss !== 'rl' || (teacher_tau ?? 0) > 0;
  if (isAsked && teacher === undefined) {
    const paths = loss === 'rl' ? [['trainer', 'loss', 'teacher_tau']] : [['loss']];
    return [
      {
        paths: [...paths, ['teacher']],
        expected: 'a [teacher] beside it: a model = "FOLDER" of weights, or a model and the url of its server',
        received: loss === 'rl' ? `teacher_tau = ${teacher_tau}` : JSON.stringify(loss),
      },
    ];
  }
  if (!isAsked && teacher !== undefined) {
    return [
      {
        paths: [at('model'), at()],
        expected:
          'loss = "sft" or loss = "opd" beside it, or [trainer.loss] teacher_tau > 0: nothing is learned from it',
        received: `loss = "${loss}"`,
      },
    ];
  }
  const scores = isAsked && loss !== 'sft';
  return [
    ...(scores && sampling.temperature !== 1
      ? [
          {
            paths: [['sampling', 'temperature'], ['loss']],
            expected: '1: a teacher’s log probabilities are those of temperature 1, and are compared with the policy’s',
            received: String(sampling.temperature),
          },
        ]
      : []),
    ...(scores && teacher?.sampling !== undefined
      ? [
          {
            paths: [at('sampling')],
            expected: 'nothing, or loss = "sft": this teacher only scores what the policy says',
            received: 'a table',
          },
        ]
      : []),
  ];
}

/** Where it is is said once. */
function placeRelations({ teacher, inference }: RatchetConfig): RelationProblem[] {
  if (teacher === undefined) return [];
  const { model, url, endpoint_id, endpoints_path, api_key_var, headers } = teacher;
  const problems: RelationProblem[] = secretHeadersIn(headers).map((name) => ({
    paths: [at('headers', name), at('headers')],
    expected: 'no header with a key in it: name its environment variable in api_key_var',
    received: 'a value (not repeated here)',
    suggestion: rotate,
  }));
  if (endpoint_id !== undefined) {
    for (const [key, value] of Object.entries({ model, url, api_key_var })) {
      if (value === undefined) continue;
      problems.push({
        paths: [at(key), at('endpoint_id')],
        expected: 'nothing, or no endpoint_id: the alias says it',
        received: JSON.stringify(value),
      });
    }
    return problems;
  }
  if (endpoints_path !== undefined) {
    problems.push({
      paths: [at('endpoints_path'), at('endpoint_id')],
      expected: 'an endpoint_id beside it: which of its aliases is meant',
      received: JSON.stringify(endpoints_path),
    });
  }
  if (model === undefined) {
    problems.push({
      paths: [at('model'), at()],
      expected: 'a model: what its server calls it, or without a url a folder of weights',
      received: 'nothing',
    });
  } else if (url === undefined && inference.kind !== 'embedded') {
    problems.push({
      paths: [at('url'), at('model'), ['inference', 'kind']],
      expected: `the url of its servers: a folder of weights is held by Ratchet's own policy servers, and [inference] kind is "${inference.kind}"`,
      received: 'nothing',
    });
  }
  return problems;
}

/** Cross entropy is one pass over tokens; what policy losses have beside that has no meaning there. */
function supervisedRelations({ loss, trainer, kl_penalty }: RatchetConfig): RelationProblem[] {
  if (loss !== 'sft') return [];
  const problems: RelationProblem[] = [];
  for (const [key, value] of Object.entries(trainer.loss)) {
    if (value === undefined || (key === 'aggregation' && value === 'token')) continue;
    problems.push({
      paths: [
        ['trainer', 'loss', key],
        ['trainer', 'loss'],
      ],
      expected: 'nothing beside loss = "sft": its loss is the cross entropy of the teacher’s tokens',
      received: JSON.stringify(value),
    });
  }
  if (trainer.num_iterations !== 1) {
    problems.push({
      paths: [['trainer', 'num_iterations']],
      expected: '1 beside loss = "sft"',
      received: String(trainer.num_iterations),
    });
  }
  if (kl_penalty?.enabled === true && kl_penalty.beta > 0) {
    problems.push({
      paths: [['kl_penalty', 'beta'], ['kl_penalty']],
      expected: 'beta = 0 beside loss = "sft": the divergence is reported, not penalized',
      received: String(kl_penalty.beta),
    });
  }
  return problems;
}

/** Rewards are compared within a group. */
function groupRelations({ loss, rollouts_per_example }: RatchetConfig): RelationProblem[] {
  if (loss !== 'rl' || rollouts_per_example >= 2) return [];
  return [
    {
      paths: [['rollouts_per_example']],
      expected: 'an integer ≥ 2: what a rollout gets is its reward compared with the others of its group',
      received: String(rollouts_per_example),
    },
  ];
}
