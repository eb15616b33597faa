import { RatchetError } from '../../core/errors.ts';
import { type JsonValue, SamplingSpec } from '../run-spec.ts';
import { requestedNames } from '../settings/sampling.ts';
import { formatPath, type KeyPath } from '../toml/positions.ts';

/** Request fields that have a meaning for a sampler of our own. */
const fieldNames = new Map(Object.entries({ ...requestedNames, max_completion_tokens: 'maxTokens' }));

/** The run's own sampling, overridden by the given request fields. A temperature of 0 is greedy. */
export function samplingOver(own: SamplingSpec, fields: Readonly<Record<string, JsonValue>>): SamplingSpec {
  const { extra_body: extra = {}, ...rest } = fields;
  const given = { ...rest, ...(typeof extra === 'object' && !Array.isArray(extra) ? extra : {}) };
  const over: Record<string, JsonValue> = {};
  for (const [name, value] of Object.entries(given)) {
    if (value === null || (name === 'n' && value === 1)) continue;
    const field = name === 'chat_template_kwargs' ? 'templateArguments' : fieldNames.get(name);
    if (field === undefined) {
      throw new RatchetError(
        'ConfigInvalid',
        `sampling ${name}: a version of a run is sampled token by token; expected ${[...fieldNames.keys()].join(', ')} or chat_template_kwargs.`,
      );
    }
    over[field] =
      field === 'stop' && typeof value === 'string' ? [value] : field === 'topK' && Number(value) <= 0 ? null : value;
  }
  const { temperature = own.temperature, ...others } = over;
  const read = SamplingSpec.safeParse({ ...own, ...others, temperature: Number(temperature) || 1 });
  if (!read.success || Number(temperature) < 0) {
    throw new RatchetError(
      'ConfigInvalid',
      `sampling ${JSON.stringify(fields)}: ${formatPath((read.error?.issues[0]?.path ?? ['temperature']) as KeyPath)} is out of range.`,
    );
  }
  return { ...read.data, temperature: Number(temperature) };
}
