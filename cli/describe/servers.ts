import type { ReflectionReport, ServerReport, TeacherReport } from '../../backends/inference/index.ts';
import { isFloat32 } from '../../core/rl/learning/canary.ts';
import { temperaturesOf } from '../../core/rl/sampling/schedule.ts';
import { needsFullWeights, type VllmSpec } from '../../config/models/vllm-spec.ts';
import type { Problem } from '../../config/toml/problems.ts';
import type { RunSpec } from '../../config/run-spec.ts';

const needed =
  'training asks for token ids in and out (POST /v1/completions with a prompt of ids and return_token_ids) and gives new weights (POST /update_weights), whatever environments the run has, of verifiers v0 or v1: their turns are sampled by Ratchet, so /v1/chat/completions/tokens and /inference/v1/generate are not asked for';
const evaluationsOnly = 'its environments, v0 and v1, are for evaluations only there';
const flag = '--logprobs-mode processed_logprobs';

/** Lines of `ratchet check` on the OpenAI-compatible servers that a run names. */
export function describeServers(spec: RunSpec, servers: readonly ServerReport[]): string[] {
  if (servers.length === 0) return [];
  const { inference } = spec;
  if ('vllm' in inference) {
    return [
      'vLLM servers:',
      ...servers.flatMap((server) => vllmLines(spec, inference.vllm, server)).map((line) => `  ${line}`),
    ];
  }
  return [
    `servers of [inference] kind = "${inference.kind}":`,
    ...servers.flatMap((server) => serverLines(spec, server)).map((line) => `  ${line}`),
    `  needed: ${needed}`,
  ];
}

/** Lines on the server that rewrites prompts. */
export function describeReflection({ url, model, missingKey, away, hasModel }: ReflectionReport): string[] {
  const who = `${model} at ${url}`;
  if (missingKey !== null)
    return [
      `[gepa]: ${who} asks for a key in ${missingKey}, which is not set here, so it was not asked`,
      `  → set it where the workers are started, or name another: [gepa] api_key_var`,
    ];
  if (away !== null) return [`[gepa]: ${who} could not be asked (${away})`];
  if (hasModel === false) return [`[gepa]: ${url} answers, and does not list ${model} among its models`];
  return [`[gepa]: ${who} answers${hasModel === null ? '; what models it has it does not tell' : ''}`];
}

/** Lines on the teacher models. */
export function describeTeacher(teachers: readonly TeacherReport[]): string[] {
  return teachers.flatMap((teacher) => (teacher.isFolder ? folderLines(teacher) : teacherLines(teacher)));
}

function folderLines({ role, where, hasSameTokens, why }: TeacherReport): string[] {
  const held = `teacher: the folder ${where}, which the run’s own policy servers hold beside the policy`;
  if (hasSameTokens === null) return [`${held}; whether it has the policy’s tokenizer could not be told (${why})`];
  if (hasSameTokens) return [`${held}; it has the policy’s tokenizer`];
  return [`${held}; its tokenizer is another than the policy’s`, tokensRemedy(role)];
}

function teacherLines(teacher: TeacherReport): string[] {
  const { role, where, model, missingKey, away, hasModel, serves, hasSameTokens, why } = teacher;
  const who = `teacher: ${model} at ${where}`;
  const does = role === 'samples' ? 'answers messages' : 'scores prompts of token ids';
  const isUnknown = `not known: whether it has the model, and whether it ${does}`;
  if (missingKey !== null)
    return [
      `${who} asks for a key in ${missingKey}, which is not set here, so it was not asked; ${isUnknown}`,
      '  → set it where the workers are started, or name another: [teacher] api_key_var',
    ];
  if (away !== null) return [`${who} could not be asked (${away}); ${isUnknown}`];
  const listed =
    hasModel === null ? 'does not tell its models' : hasModel ? 'has the model' : 'does not list it among its models';
  if (serves !== true) {
    const remedy =
      role === 'samples'
        ? '  → it needs /v1/chat/completions'
        : '  → it needs prompt_logprobs on /v1/completions, as vLLM and Ratchet’s policy server have them';
    return [`${who}: ${listed}, and does not answer as needed: ${why}`, remedy];
  }
  const known = `${who}: ${listed}, ${does}`;
  if (role === 'samples') return [known];
  if (hasSameTokens === null) return [`${known}; whether it has the policy’s tokenizer could not be told: ${why}`];
  if (hasSameTokens) return [`${known}, and means by them what the policy does, as far as was looked`];
  return [`${known}, but has another tokenizer than the policy: ${why}`, tokensRemedy(role)];
}

function tokensRemedy(role: TeacherReport['role']): string {
  return role === 'samples'
    ? '  → serve it (vllm serve, or any OpenAI-compatible server) and name its url: then its words are read, not its tokens'
    : '  → only a teacher with the policy’s tokenizer can score its tokens; with loss = "sft" any may play, named by its url';
}

function serverLines(spec: RunSpec, server: ServerReport): string[] {
  const { url, away, models, givesTokenIds, why, takesWeights } = server;
  if (away !== null) {
    return [
      `${url}: could not be asked, so it is not known whether it can be trained with (${away})`,
      `  → vLLM has to be started with ${flag}`,
    ];
  }
  const known = models.length === 0 ? 'has no model yet' : `has ${models.slice(0, 3).join(', ')}`;
  const tokens =
    givesTokenIds === null
      ? 'whether it gives token ids cannot be asked before it has a model'
      : givesTokenIds
        ? 'gives token ids'
        : 'gives no token ids';
  const weights = takesWeights === true ? 'takes new weights' : 'has no /update_weights';
  return [
    `${url}: ${known}, ${tokens}, ${weights}`,
    ...(givesTokenIds === false
      ? [`  → ${evaluationsOnly}: what is trained on are ids, never a guess from text (${why})`]
      : []),
    ...(takesWeights === true
      ? []
      : ['  → no run can train with it: it keeps sampling from the weights it was started with']),
    ...logprobLines(spec, server),
  ];
}

/** Options that an answering vLLM server must be started with; empty when it is suitable as it is. */
export function vllmLacks(vllm: VllmSpec, { takesAdapters, takesFullWeights, givesTokenIds }: ServerReport): string[] {
  const because =
    vllm.loraRank === null ? 'the run trains all weights' : 'v0 is another model than it was started with';
  return [
    ...(vllm.loraRank !== null && takesAdapters === false
      ? ['the run trains adapters: start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1']
      : []),
    ...(needsFullWeights(vllm) && takesFullWeights === false
      ? [`${because}: start vLLM with VLLM_SERVER_DEV_MODE=1, on loopback, or use prime-rl's server`]
      : []),
    ...(givesTokenIds === false ? ['it gives no token ids (return_token_ids), and what is trained on are ids'] : []),
  ];
}

/** Adapters and full weights reach vLLM by different routes, which depend on its start options. */
function vllmLines(spec: RunSpec, vllm: VllmSpec, server: ServerReport): string[] {
  const { url, away, models, givesTokenIds, version, takesAdapters, takesFullWeights, floatType } = server;
  if (away !== null) return [`${url}: could not be asked, so it is not known whether it can be trained with (${away})`];
  const adapters = vllm.loraRank === null ? [] : [takesAdapters ? 'takes adapters' : 'takes no adapters'];
  const full = needsFullWeights(vllm) ? [takesFullWeights ? 'takes full weights' : 'takes no full weights'] : [];
  const tokens = givesTokenIds === false ? ['gives no token ids'] : givesTokenIds ? ['gives token ids'] : [];
  const floats = floatType === null ? [] : [`computes in ${floatType}`];
  const written = vllm.args['dtype'] ?? 'auto';
  const isContradicted = floatType !== null && written !== 'auto' && isFloat32(vllm) !== (floatType === 'float32');
  const has = [`has ${models.slice(0, 3).join(', ') || 'no model yet'}`, ...tokens, ...adapters, ...full, ...floats];
  return [
    `${url}: ${version === null ? '' : `version ${version}, `}${has.join(', ')}`,
    ...(isContradicted
      ? [
          `  → [inference.vllm] dtype is ${JSON.stringify(written)}, and the server says otherwise: the canary uses the server's`,
        ]
      : []),
    ...vllmLacks(vllm, server).map((line) => `  → ${line}`),
    ...logprobLines(spec, server),
  ];
}

/** Temperatures at which log probabilities before the temperature are useless. */
export function otherTemperatures(spec: RunSpec): number[] {
  return temperaturesOf(spec).filter((temperature) => temperature !== 1);
}

function logprobLines(spec: RunSpec, { logprobsAreRaw, givesTokenIds }: ServerReport): string[] {
  if (givesTokenIds === null) return [`  → vLLM has to be started with ${flag}`];
  if (logprobsAreRaw !== true) return [];
  const others = otherTemperatures(spec);
  const harm =
    others.length === 0
      ? 'that is right at temperature 1 alone, which this run has'
      : `this run, at temperature ${others.join(' and ')}, is refused`;
  return [`  → its log probabilities are those before the temperature: ${harm}; start vLLM with ${flag}`];
}

/** Problems with a vLLM that runs but cannot take the run's weights, reported beside its features. */
export function serverProblems({ inference }: RunSpec, servers: readonly ServerReport[]): Problem[] {
  if (!('vllm' in inference)) return [];
  return servers.flatMap((server) =>
    vllmLacks(inference.vllm, server).map((expected) => ({
      file: server.url,
      line: null,
      column: null,
      path: 'inference.url',
      expected,
      received: 'a server that was started without',
    })),
  );
}
