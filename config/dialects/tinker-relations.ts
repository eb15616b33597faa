import { isTinkerLoss, tinkerLoraAlpha } from '../tinker-spec.ts';
import type { RatchetConfig } from '../settings/index.ts';
import { loraModules } from '../settings/optimizer.ts';
import type { RelationProblem } from './ratchet-relations.ts';
import { lossSpec } from '../settings/learning.ts';
import { tinkerTrainerSpec } from '../settings/trainer.ts';

const ownKeys = ['url', 'api_key_var', 'server', 'base_model', 'loss_reduction', 'checkpoint_ttl'] as const;

/** What a run on a Tinker server says, held against what such servers do: refused here, before anything is started. */
export function tinkerRelations(config: RatchetConfig): RelationProblem[] {
  const { trainer, inference } = config;
  if (trainer.kind === 'tinker') {
    return [
      ...trainerRelations(config),
      ...temperatureOfTinker(config),
      ...adapterRelations(config),
      ...samplingOfTinker(config),
    ];
  }
  const problems = ownKeys
    .filter((key) => trainer[key] !== undefined)
    .map((key): RelationProblem => ({
      paths: [
        ['trainer', key],
        ['trainer', 'kind'],
      ],
      expected: 'kind = "tinker" beside it: no other trainer has such a setting',
      received: `kind = "${trainer.kind}"`,
    }));
  if (inference.kind !== 'tinker') return problems;
  const expected = 'another kind, or [trainer] kind = "tinker": such a server samples only what was trained there';
  return [
    ...problems,
    {
      paths: [
        ['inference', 'kind'],
        ['trainer', 'kind'],
      ],
      expected,
      received: '"tinker"',
    },
  ];
}

function trainerRelations({ trainer, inference }: RatchetConfig): RelationProblem[] {
  const problems: RelationProblem[] = [];
  if (inference.kind === 'embedded') {
    problems.push({
      paths: [
        ['inference', 'kind'],
        ['trainer', 'kind'],
      ],
      expected:
        '"tinker", or "vllm" with the same base model: the embedded engine does not have the weights that a Tinker server trains',
      received: '"embedded"',
      suggestion: '[inference] kind = "tinker"',
    });
  }
  if (inference.kind === 'tinker') {
    for (const key of ['url', 'endpoint_id', 'api_key_var'] as const) {
      if (inference[key] === undefined) continue;
      problems.push({
        paths: [
          ['inference', key],
          ['inference', 'kind'],
        ],
        expected: 'nothing: what samples is the server of [trainer], with its key',
        received: JSON.stringify(inference[key]),
      });
    }
  }
  if (trainer.micro_batch_size !== undefined) {
    problems.push({
      paths: [
        ['trainer', 'micro_batch_size'],
        ['trainer', 'kind'],
      ],
      expected: 'nothing: a Tinker server decides itself how many rows it computes at once',
      received: String(trainer.micro_batch_size),
    });
  }
  return problems;
}

function temperatureOfTinker({ sampling }: RatchetConfig): RelationProblem[] {
  const problems: RelationProblem[] = [];
  if (sampling.temperature !== 1) {
    problems.push({
      paths: [
        ['sampling', 'temperature'],
        ['trainer', 'kind'],
      ],
      expected: '1: a Tinker server trains log probabilities at temperature 1, so others would be of another policy',
      received: String(sampling.temperature),
    });
  }
  return problems;
}

/** Layers that such a server adapts together (`train_attn`, `train_mlp`). */
const moduleGroups = [
  ['q_proj', 'k_proj', 'v_proj', 'o_proj'],
  ['gate_proj', 'up_proj', 'down_proj'],
] as const;

function adapterRelations({ lora, lora_alpha }: RatchetConfig): RelationProblem[] {
  const problems: RelationProblem[] = [];
  const say = (path: readonly string[], expected: string, received: unknown): void =>
    void problems.push({ paths: [path, ['trainer', 'kind']], expected, received: String(received) });
  if (lora?.enabled === false) say(['lora', 'enabled'], 'true: a Tinker server trains adapters only', false);
  if ((lora?.alpha ?? tinkerLoraAlpha) !== tinkerLoraAlpha) {
    say(
      ['lora', 'alpha'],
      `${tinkerLoraAlpha}, or nothing: a Tinker server scales its adapters by ${tinkerLoraAlpha} / r`,
      lora?.alpha,
    );
  }
  if ((lora_alpha ?? tinkerLoraAlpha) !== tinkerLoraAlpha) {
    say(
      ['lora_alpha'],
      `${tinkerLoraAlpha}, or nothing: a Tinker server scales its adapters by ${tinkerLoraAlpha} / r`,
      lora_alpha,
    );
  }
  const wanted: readonly string[] = lora?.target_modules ?? loraModules;
  const isHalved = moduleGroups.some((group) => {
    const found = group.filter((name) => wanted.includes(name)).length;
    return found > 0 && found < group.length;
  });
  if (isHalved) {
    const groups = moduleGroups.map((group) => group.join(', ')).join('; or of ');
    say(
      ['lora', 'target_modules'],
      `all of ${groups}; or both: a Tinker server adapts attention and MLP each as a whole`,
      JSON.stringify(wanted),
    );
  }
  if ((lora?.dropout ?? 0) > 0) say(['lora', 'dropout'], '0: a Tinker server has no dropout', lora?.dropout);
  return problems;
}

/** What of vLLM's sampling such a server does not know. */
const unknownThere = {
  min_p: 0,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  min_tokens: 0,
} as const;

function samplingOfTinker(config: RatchetConfig): RelationProblem[] {
  if (config.inference.kind !== 'tinker') return [];
  const tables = [
    { path: ['sampling'], table: config.sampling },
    { path: ['eval', 'sampling'], table: config.eval?.sampling ?? {} },
    ...config.env.map(({ sampling = {} }, i) => ({ path: ['env', i, 'sampling'], table: sampling })),
    ...(config.eval?.env ?? []).map(({ sampling = {} }, i) => ({
      path: ['eval', 'env', i, 'sampling'],
      table: sampling,
    })),
  ];
  return tables.flatMap(({ path, table }) => {
    const written: Readonly<Record<string, unknown>> = table;
    const problems: RelationProblem[] = Object.entries(unknownThere)
      .filter(([key, neutral]) => written[key] !== undefined && written[key] !== neutral)
      .map(([key, neutral]) => ({
        paths: [
          [...path, key],
          ['inference', 'kind'],
        ],
        expected: `${neutral}, or nothing: a Tinker server samples by temperature, top_p and top_k alone`,
        received: String(written[key]),
      }));
    if (table.stop !== undefined && table.stop.length > 0) {
      const expected = 'nothing: turns end at the model’s own end tokens there';
      problems.push({
        paths: [
          [...path, 'stop'],
          ['inference', 'kind'],
        ],
        expected,
        received: JSON.stringify(table.stop),
      });
    }
    return problems;
  });
}

/** What such a server will do otherwise than the file says. */
export function tinkerWarnings(config: RatchetConfig): string[] {
  if (config.trainer.kind !== 'tinker') return [];
  const { server } = tinkerTrainerSpec(config);
  const isSupervised = config.sft !== undefined && config.max_steps > 0;
  const { enabled = false, beta = 0 } = config.kl_penalty ?? {};
  const loss = lossSpec(config);
  const isComputedHere = config.max_steps > 0 && !isTinkerLoss(loss, enabled ? beta : 0);
  const here = isComputedHere
    ? [
        `trainer.loss ("${loss.type}"${beta > 0 && enabled ? ' with [kl_penalty]' : loss.teacherTau > 0 ? ' with a teacher' : ''}): such a server does not have it. It is computed here from the log probabilities of a forward pass, and the server takes its gradient in them: a third more work a step, the same update.`,
      ]
    : [];
  if (server !== 'skyrl') return here;
  return [
    ...here,
    `trainer.max_grad_norm (${config.trainer.max_grad_norm}) is told to the server; SkyRL 0.3.0 takes no notice of it and clips nothing.`,
    ...(isSupervised
      ? [
          '[sft]: SkyRL 0.3.0 restores the optimizer’s moments with the weights, whatever is asked: step 1 begins with those of the warm-up.',
        ]
      : []),
  ];
}
