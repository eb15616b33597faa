/** Learning and losses in prime-rl's files, at home and here in the same words. */
import type { RunSpec } from '../../../config/run-spec.ts';
import { isTable, type Table, tableOr } from '../../../config/toml/tables.ts';
import { isRoleAdvantage } from '../../../core/rl/rollout/agents.ts';
import type { Meaning } from './compare.ts';
import type { Home } from './files.ts';
import { sourcesOf } from './prime-rl-environments.ts';

const none = null;

export const learningMeanings: readonly Meaning[] = [
  {
    what: 'loss',
    reads: ['trainer.loss.*'],
    says: ['trainer.loss', 'the loss'],
    home: (home) => lossOf(home),
    here: ({ spec: { loss } }) => lossHere(loss),
  },
  {
    what: 'masks of whole sequences',
    reads: ['trainer.loss.geo_mask_low', 'trainer.loss.sequence_mask_low'],
    says: ['masks of whole sequences'],
    home: (home) =>
      ['geo_mask_low', 'geo_mask_high', 'sequence_mask_low', 'sequence_mask_high'].map((key) =>
        home.at(`trainer.loss.${key}`),
      ),
    here: ({ spec: { loss } }, home) =>
      home.has('trainer.loss.geo_mask_low')
        ? [...(loss.correction.geometricMask ?? [none, none]), ...(loss.correction.extremeMask ?? [none, none])]
        : [none, none, none, none],
  },
  {
    what: 'algorithm',
    reads: [
      'orchestrator.algo.*',
      'orchestrator.train.source[].algo.*',
      'orchestrator.train.env[].algo.*',
      'orchestrator.train.env[].advantage.*',
      'orchestrator.advantage.*',
      'orchestrator.training_mode',
      'orchestrator.use_sft_loss',
    ],
    says: ['algo', 'advantage'],
    home: (home) => (sourcesOf(home).length > 0 ? sourcesOf(home) : [home]).map((one) => algorithmOf(home, one)),
    here: ({ spec }, home) =>
      (sourcesOf(home).length > 0 ? sourcesOf(home) : [home]).map((_, i) => algorithmHere(spec, i)),
  },
  {
    what: 'teacher',
    reads: [
      'orchestrator.teacher_model.*',
      'orchestrator.teacher.*',
      'orchestrator.teacher_rollout_model.*',
      'teacher_gpu_ids',
      'teacher_inference',
    ],
    says: ['teacher'],
    home: (home) => teacherOf(home),
    here: ({ spec: { teacher } }) => (teacher === null || teacher.demonstration ? none : [teacher.model, teacher.urls]),
  },
  { what: 'divergence', reads: [], says: [], home: () => 0, here: ({ spec }) => spec.kl.beta },
  {
    what: 'groups without an advantage',
    reads: ['orchestrator.train.filter_zero_advantages', 'orchestrator.buffer.online_difficulty_filtering'],
    says: ['filter_zero_advantages', 'without any advantage', 'online_difficulty_filtering'],
    home: (home) => zeroAdvantagesOf(home),
    here: ({ spec: { filter, rolloutFilters } }) => ({
      trained:
        filter.keepsEqual && !rolloutFilters.post.some(({ type, enforce }) => type === 'zero_advantage' && enforce),
      dropsAllOrNone: filter.onlineDifficultyFiltering,
    }),
  },
  {
    what: 'filters of rollouts',
    reads: ['orchestrator.filters', 'orchestrator.pre_batch_filters', 'orchestrator.post_batch_filters'],
    says: ['filters'],
    home: (home) =>
      ['pre_batch_filters', 'post_batch_filters', 'filters'].map((key) => typesOf(home.at(`orchestrator.${key}`))),
    here: ({ spec: { rolloutFilters } }, home) => {
      // Since v0.8.1 filter_zero_advantages says it, which is above.
      const isPruned = home.has('orchestrator.train.filter_zero_advantages');
      const post = typesOf(rolloutFilters.post.filter(({ type }) => !isPruned || type !== 'zero_advantage'));
      return home.has('orchestrator.filters') ? [[], [], post] : [typesOf(rolloutFilters.pre), post, []];
    },
  },
  {
    what: 'turns as rows',
    reads: ['orchestrator.trajectory_strategy'],
    says: ['trajectory_strategy'],
    home: (home) => home.at('orchestrator.trajectory_strategy') ?? 'interleaved',
    here: ({ spec }) => spec.trajectoryStrategy,
  },
  {
    what: 'tokens of the environment',
    reads: ['orchestrator.mask_env_responses'],
    says: ['mask_env_responses'],
    home: (home) => home.at('orchestrator.mask_env_responses') ?? true,
    here: () => true,
  },
  {
    what: 'rollouts that were cut',
    reads: ['orchestrator.mask_truncated_completions', 'orchestrator.zero_truncated_completions'],
    says: ['truncated_completions'],
    home: (home) => ['mask', 'zero'].map((key) => home.at(`orchestrator.${key}_truncated_completions`) ?? false),
    here: ({ spec }) => [spec.maskTruncated, spec.zeroTruncated],
  },
];

/** Those that take rollouts away; the others only count. What has no advantage is compared by itself. */
function typesOf(filters: unknown): unknown[] {
  const list = Array.isArray(filters) ? (filters as Table[]) : [];
  return list.flatMap(({ type, enforce }) => (enforce === true && type !== 'zero_advantage' ? [type] : []));
}

function kindOf(home: Home): string {
  const algo = home.at<string>('orchestrator.algo.type');
  if (algo !== null) return algo;
  const mode = home.at<string>('orchestrator.training_mode');
  if (mode !== null) return mode === 'rl' ? 'grpo' : mode;
  return home.at('orchestrator.use_sft_loss') === true || home.at('trainer.loss.type') === 'sft' ? 'sft' : 'grpo';
}

const distilled = ['ipo', 0.2, none, 1e-3, 0, 1, 'token'];

function lossOf(home: Home): unknown {
  const at = (key: string): unknown => home.at(`trainer.loss.${key}`);
  const kind = kindOf(home);
  if (kind === 'sft') return ['cross_entropy', 0, none, 0, 'token'];
  // The loss of distillation is a constant of the code (ref_kl_loss_fn).
  if (kind === 'opd' || kind === 'opsd') return distilled;
  if (home.has('trainer.loss.token_mask_low')) {
    return [
      'importance_sampling',
      at('token_mask_low'),
      at('token_mask_high'),
      at('kl_tau'),
      at('adv_tau'),
      at('teacher_tau'),
      at('ratio_type'),
    ];
  }
  const low = at('type') === 'ipo' ? at('ipo_threshold') : at('dppo_mask_low');
  const high = at('type') === 'ipo' ? at('ipo_threshold') : at('dppo_mask_high');
  const type = at('type') === 'default' ? 'dppo' : at('type');
  return [type, low, high, at('kl_tau'), at('adv_tau'), at('teacher_tau') ?? 0, 'token'];
}

function lossHere({ type, maskLow, maskHigh, klTau, advantageTau, teacherTau, aggregation }: RunSpec['loss']): unknown {
  if (type === 'cross_entropy') return [type, maskLow, maskHigh, klTau, aggregation];
  return [type, maskLow, maskHigh, klTau, advantageTau, teacherTau, aggregation];
}

function algorithmOf(home: Home, source: Home): unknown {
  const algo = source.at<Table>('algo') ?? home.at<Table>('orchestrator.algo');
  const {
    type = kindOf(home),
    length_penalty: penalty = null,
    sampling: _sampling,
    teacher: _teacher,
    ...rest
  } = algo ?? {};
  const kind = type as string;
  const older = home.at<Table>('orchestrator.advantage');
  const isDefault =
    older === null
      ? !home.has('orchestrator.advantage')
      : Object.values(older).every((value) => value === 'default' || value === false || value === null);
  if (kind === 'grpo')
    return { type: 'centered', penalty: penaltyOf(penalty), ...(isDefault ? {} : { advantage: older }) };
  if (kind === 'opd' || kind === 'sft') return { type: kind };
  if (kind === 'max_rl') return { type: kind, penalty };
  if (kind === 'echo' && (rest['filter'] ?? null) === null)
    return { type: kind, penalty: penaltyOf(penalty), roles: rolesOf(rest['roles']) };
  // Its renderer is that of the policy, as here.
  if (kind === 'opsd') return { type: kind, key: rest['demo_key'], template: rest['template'] };
  return { type: kind, ...rest };
}

/** Weights of the roles that are on. */
function rolesOf(roles: unknown): unknown {
  const on = Object.entries(tableOr(roles)).filter(([, role]) => isTable(role));
  return Object.fromEntries(on.map(([role, said]) => [role, tableOr(said)['alpha']]));
}

/** Weights of tokens that were sampled, of others, and of turns. */
function penaltyOf(penalty: unknown): unknown {
  if (!isTable(penalty)) return penalty ?? none;
  const {
    type,
    num_output_tokens_weight: output,
    num_input_tokens_weight: input,
    num_turns_weight: turns,
    ...rest
  } = penalty;
  return type === 'linear' && Object.keys(rest).length === 0 ? [output, input, turns] : penalty;
}

function algorithmHere(spec: RunSpec, i: number): unknown {
  const { distillation, advantage: usual, environments, teacher, lengthPenalty } = spec;
  const { objective, echo, advantage = usual } = environments[i] ?? {};
  const loss = objective === undefined ? spec.loss : distillation!;
  if (loss.type === 'cross_entropy') return { type: 'sft' };
  const isTaught = loss.advantageTau === 0 && loss.teacherTau > 0;
  if (isTaught && teacher?.demonstration) return { type: 'opsd', ...teacher.demonstration };
  if (isTaught && teacher) return { type: 'opd', ...(objective === undefined ? {} : { loss: besideHere(loss) }) };
  const penalty = lengthPenalty && [lengthPenalty.outputTokens, lengthPenalty.inputTokens, lengthPenalty.turns];
  if (echo) return { type: 'echo', penalty: penalty ?? none, roles: echo };
  if (isRoleAdvantage(advantage)) {
    const { type } = advantage;
    return advantage.type === 'rae' ? advantage : { type, episode_agents: advantage.episodeAgents };
  }
  return { type: advantage, penalty: penalty ?? none };
}

/** The loss of one source among others when it is not distillation; undefined when it is. */
function besideHere(loss: RunSpec['loss']): unknown {
  return JSON.stringify(lossHere(loss)) === JSON.stringify(distilled) ? undefined : lossHere(loss);
}

function teacherOf(home: Home): unknown {
  const places = [
    'orchestrator.algo.teacher',
    'orchestrator.algo.sampling.source',
    'orchestrator.teacher',
    'orchestrator.teacher_model',
    'orchestrator.teacher_rollout_model',
  ];
  const beside = sourcesOf(home).map((source) => source.at<Table>('algo.teacher'));
  const found = [...places.map((path) => home.at<Table>(path)), ...beside].find(isTable);
  if (!found) return none;
  const name = found['name'] ?? tableOr(found['model'])['name'];
  const url = found['base_url'] ?? tableOr(found['client'])['base_url'];
  return [name, [url].flat()];
}

/** Until v0.5 groups whose rollouts all scored the same were trained on; later their rollouts lose their loss and are not replaced. */
function zeroAdvantagesOf(home: Home): unknown {
  const dropsAllOrNone = home.at('orchestrator.buffer.online_difficulty_filtering') ?? false;
  const isTrained = home.has('orchestrator.train.filter_zero_advantages')
    ? home.at('orchestrator.train.filter_zero_advantages') === false
    : !['filters', 'pre_batch_filters', 'post_batch_filters'].some((key) =>
        home
          .list(`orchestrator.${key}`)
          .some((filter) => filter.at('type') === 'zero_advantage' && filter.at('enforce') === true),
      );
  return { trained: isTrained || ['opd', 'sft', 'opsd'].includes(kindOf(home)), dropsAllOrNone };
}
