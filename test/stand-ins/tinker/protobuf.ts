import { BinaryReader, BinaryWriter, WireType } from '@bufbuild/protobuf/wire';

/** The hosted service's side of what travels in bytes: package `tinker_public` (proto3) of the Python package `tinker` 0.38. */

export const protobufType = 'application/x-protobuf';

/** A ForwardBackwardRequest in the words of the JSON that SkyRL takes. */
export function decodePass(bytes: Uint8Array): unknown {
  let [model, loss, isForward, number] = ['', '', false, 0];
  const data: unknown[] = [];
  const config: Record<string, number> = {};
  read(bytes, {
    1: (r) => (model = r.string()),
    2: (r) => (number = r.int32()),
    3: (r) => data.push(decodeDatum(r.bytes())),
    4: (r) => (loss = r.string()),
    5: (r) =>
      read(
        r.bytes(),
        pair((name, value) => (config[name] = value.double())),
      ),
    6: (r) => (isForward = r.bool()),
  });
  const input = { data, loss_fn: loss, loss_fn_config: Object.keys(config).length > 0 ? config : null };
  return { model_id: model, seq_id: number, [isForward ? 'forward_input' : 'forward_backward_input']: input };
}

function decodeDatum(bytes: Uint8Array): unknown {
  const tokens: number[] = [];
  const inputs: Record<string, unknown> = {};
  read(bytes, {
    1: (chunk) =>
      read(chunk.bytes(), {
        1: (text) => read(text.bytes(), { 1: (r) => tokens.push(...new Int32Array(copied(r.bytes()))) }),
      }),
    2: (entry) =>
      read(
        entry.bytes(),
        pair((name, value) => (inputs[name] = decodeTensor(value.bytes()))),
      ),
  });
  return { model_input: { chunks: [{ type: 'encoded_text', tokens }] }, loss_fn_inputs: inputs };
}

function decodeTensor(bytes: Uint8Array): { readonly data: number[] } {
  let dense = new ArrayBuffer(0);
  let type = 0;
  read(bytes, { 1: (r) => (dense = copied(r.bytes())), 3: (r) => (type = r.int32()) });
  if (type === 1) return { data: [...new Float32Array(dense)] };
  if (type === 2) return { data: [...new BigInt64Array(dense)].map(Number) };
  throw new Error(`Expected a tensor of float32 or int64, got data type ${type}.`);
}

/** Result of a promise in bytes; null for one that is sent as JSON. */
export function encodeResult(result: unknown): Uint8Array | null {
  if (typeof result !== 'object' || result === null) return null;
  if ('loss_fn_outputs' in result) return encodePass(result as PassResult);
  return 'sequences' in result ? encodeSample(result as SampleResult) : null;
}

interface PassResult {
  readonly loss_fn_outputs: readonly { readonly logprobs: { readonly data: readonly number[] } }[];
  readonly metrics: Readonly<Record<string, number>>;
}

/** Logprobs of all rows behind one another, with where each begins, in bytes. */
function encodePass({ loss_fn_outputs: outputs, metrics }: PassResult): Uint8Array {
  const rows = outputs.map(({ logprobs }) => logprobs.data);
  const offsets = [0n];
  for (const row of rows) offsets.push(offsets.at(-1)! + BigInt(4 * row.length));
  const writer = new BinaryWriter();
  writer.tag(1, WireType.LengthDelimited).string('scalar');
  message(writer, 2, () => {
    message(writer, 2, () => {
      writer.tag(1, WireType.LengthDelimited).string('logprobs');
      message(writer, 2, () => {
        writer.tag(1, WireType.LengthDelimited).bytes(bytesOf(Float32Array.from(rows.flat())));
        writer.tag(2, WireType.LengthDelimited).bytes(bytesOf(BigInt64Array.from(offsets)));
        writer.tag(3, WireType.Varint).int32(1);
      });
    });
    writer.tag(3, WireType.Varint).int32(rows.length);
  });
  for (const [name, value] of Object.entries(metrics)) {
    message(writer, 3, () => {
      writer.tag(1, WireType.LengthDelimited).string(name);
      writer.tag(2, WireType.Bit64).double(value);
    });
  }
  return writer.finish();
}

interface SampleResult {
  readonly sequences: readonly {
    readonly stop_reason: 'stop' | 'length';
    readonly tokens: readonly number[];
    readonly logprobs: readonly number[];
  }[];
  /** Log probability of each token after the first. */
  readonly prompt_logprobs?: readonly number[];
}

function encodeSample({ sequences, prompt_logprobs: scored }: SampleResult): Uint8Array {
  const writer = new BinaryWriter();
  for (const { stop_reason: reason, tokens, logprobs } of sequences) {
    message(writer, 1, () => {
      if (reason === 'length') writer.tag(1, WireType.Varint).int32(1);
      writer.tag(2, WireType.LengthDelimited).bytes(bytesOf(Int32Array.from(tokens)));
      writer.tag(3, WireType.LengthDelimited).bytes(bytesOf(Float32Array.from(logprobs)));
    });
  }
  if (scored) writer.tag(2, WireType.LengthDelimited).bytes(bytesOf(Float32Array.from([NaN, ...scored])));
  return writer.finish();
}

function bytesOf({ buffer }: { readonly buffer: ArrayBuffer }): Uint8Array {
  return new Uint8Array(buffer);
}

function copied(bytes: Uint8Array): ArrayBuffer {
  return new Uint8Array(bytes).buffer;
}

type Fields = Readonly<Record<number, (reader: BinaryReader) => unknown>>;

/** The fields of a map's entry. */
function pair(take: (name: string, value: BinaryReader) => unknown): Fields {
  let name = '';
  return { 1: (r) => (name = r.string()), 2: (r) => take(name, r) };
}

function read(bytes: Uint8Array, fields: Fields): void {
  const reader = new BinaryReader(bytes);
  while (reader.pos < reader.len) {
    const [field, type] = reader.tag();
    const take = fields[field];
    if (take) take(reader);
    else reader.skip(type, field);
  }
}

function message(writer: BinaryWriter, field: number, write: () => unknown): void {
  writer.tag(field, WireType.LengthDelimited).fork();
  write();
  writer.join();
}
