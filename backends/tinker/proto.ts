import { BinaryReader, BinaryWriter, WireType } from '@bufbuild/protobuf/wire';
import { TinkerTrouble } from './trouble.ts';
import type { Datum, LossCall, PassOutput, SampledSequence, SampleOutput, TensorInput } from './types.ts';

/**
 * The binary messages of package `tinker_public` (proto3): `ForwardBackwardRequest` out, its output and
 * `SampleResponse` in. Field numbers are those of `tinker` 0.38. Numbers are packed as little-endian bytes; entries of
 * maps are in the order of their keys, as in protobuf's deterministic serialization.
 */
interface PassRequest {
  readonly modelId: string;
  readonly seqId: number;
  readonly data: readonly Datum[];
  readonly loss: LossCall;
  readonly forwardOnly: boolean;
}

const dataTypes = { float32: 1, int64: 2 } as const;
const stopReasons = ['stop', 'length'] as const;

export function encodePassRequest({ modelId, seqId, data, loss, forwardOnly }: PassRequest): Uint8Array {
  const writer = new BinaryWriter();
  writer.tag(1, WireType.LengthDelimited).string(modelId);
  if (seqId !== 0) writer.tag(2, WireType.Varint).int32(seqId);
  for (const datum of data) message(writer, 3, () => writeDatum(writer, datum));
  writer.tag(4, WireType.LengthDelimited).string(loss.lossFn);
  const config = byKey(loss.config ?? {});
  // Both maps have the same content: servers that know the second one prefer it.
  for (const [name, value] of config) {
    entry(writer, 5, name, () => writer.tag(2, WireType.Bit64).double(value));
  }
  if (forwardOnly) writer.tag(6, WireType.Varint).bool(true);
  for (const [name, value] of config) {
    entry(writer, 7, name, () => message(writer, 2, () => writer.tag(1, WireType.Bit64).double(value)));
  }
  return writer.finish();
}

function writeDatum(writer: BinaryWriter, { tokens, inputs }: Datum): void {
  const bytes = Buffer.from(Int32Array.from(tokens).buffer);
  // model_input → encoded_text → tokens
  message(writer, 1, () => message(writer, 1, () => writer.tag(1, WireType.LengthDelimited).bytes(bytes)));
  for (const [name, tensor] of byKey(inputs)) {
    entry(writer, 2, name, () => message(writer, 2, () => writeTensor(writer, tensor)));
  }
}

function writeTensor(writer: BinaryWriter, { dtype, data }: TensorInput): void {
  const values = dtype === 'float32' ? Float32Array.from(data) : BigInt64Array.from(data, BigInt);
  writer.tag(1, WireType.LengthDelimited).bytes(Buffer.from(values.buffer));
  writer.tag(3, WireType.Varint).int32(dataTypes[dtype]);
  writer.tag(4, WireType.LengthDelimited).fork().int64(data.length).join(); // shape, packed
}

function message(writer: BinaryWriter, field: number, write: () => unknown): void {
  writer.tag(field, WireType.LengthDelimited).fork();
  write();
  writer.join();
}

function entry(writer: BinaryWriter, field: number, key: string, writeValue: () => unknown): void {
  message(writer, field, () => {
    writer.tag(1, WireType.LengthDelimited).string(key);
    writeValue();
  });
}

function byKey<T>(map: Readonly<Record<string, T>>): [string, T][] {
  return Object.entries(map).sort(([a], [b]) => (a < b ? -1 : 1));
}

export function decodePassOutput(bytes: Uint8Array): PassOutput {
  const logprobs: number[][] = [];
  const metrics: Record<string, number> = {};
  read(bytes, {
    2: (reader) => {
      for (const row of logprobsOfRecord(reader.bytes())) logprobs.push(row);
    },
    3: (reader) => {
      let [name, value] = ['', 0];
      read(reader.bytes(), { 1: (r) => (name = r.string()), 2: (r) => (value = r.double()) });
      metrics[name] = value;
    },
  });
  return { logprobs, metrics };
}

/** An ArrayRecord: the numbers of several datums behind one another, by name. */
function logprobsOfRecord(bytes: Uint8Array): number[][] {
  let rows: number[][] = [];
  read(bytes, {
    2: (reader) => {
      let name = '';
      let tensor: Uint8Array = new Uint8Array();
      read(reader.bytes(), { 1: (r) => (name = r.string()), 2: (r) => (tensor = r.bytes()) });
      if (name === 'logprobs') rows = rowsOfTensor(tensor);
    },
  });
  return rows;
}

function rowsOfTensor(bytes: Uint8Array): number[][] {
  let data: Uint8Array = new Uint8Array();
  let offsets: Uint8Array = new Uint8Array();
  let type = 0;
  read(bytes, {
    1: (r) => (data = r.bytes()),
    2: (r) => (offsets = r.bytes()),
    3: (r) => (type = r.int32()),
  });
  const { values, width } = floatsOf(data, type);
  const bounds = [...new BigInt64Array(aligned(offsets))].map((bound) => Number(bound) / width);
  return bounds.slice(1).map((end, i) => [...values.subarray(bounds[i], end)]);
}

/** Numbers of one of the wire's types, and how many bytes one takes there. */
function floatsOf(data: Uint8Array, type: number): { values: Float32Array; width: number } {
  if (type === 1) return { values: new Float32Array(aligned(data)), width: 4 };
  if (type !== 4) throw new TinkerTrouble('failed', `Expected logprobs as float32 or bfloat16, got data type ${type}.`);
  const halves = new Uint16Array(aligned(data)); // the upper half of a float32
  return { values: new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer), width: 2 };
}

export function decodeSampleResponse(bytes: Uint8Array): SampleOutput {
  const sequences: SampledSequence[] = [];
  let promptLogprobs: (number | null)[] | null = null;
  read(bytes, {
    1: (reader) => sequences.push(sequenceIn(reader.bytes())),
    2: (reader) => {
      const values = [...new Float32Array(aligned(reader.bytes()))];
      promptLogprobs = values.map((value) => (Number.isNaN(value) ? null : value));
    },
  });
  return { sequences, promptLogprobs };
}

function sequenceIn(bytes: Uint8Array): SampledSequence {
  let reason = 0;
  let tokens: number[] = [];
  let logprobs: number[] = [];
  read(bytes, {
    1: (r) => (reason = r.int32()),
    2: (r) => (tokens = [...new Int32Array(aligned(r.bytes()))]),
    3: (r) => (logprobs = [...new Float32Array(aligned(r.bytes()))]),
  });
  const stopReason = stopReasons[reason];
  if (stopReason === undefined) throw new TinkerTrouble('failed', `Expected a stop reason 0 or 1, got ${reason}.`);
  return { stopReason, tokens, logprobs };
}

/** Reads the requested fields at each occurrence and skips the rest. */
function read(bytes: Uint8Array, fields: Readonly<Record<number, (reader: BinaryReader) => unknown>>): void {
  const reader = new BinaryReader(bytes);
  while (reader.pos < reader.len) {
    const [field, type] = reader.tag();
    const take = fields[field];
    if (take) take(reader);
    else reader.skip(type, field);
  }
}

/** A copy with the alignment of numbers. */
function aligned(bytes: Uint8Array): ArrayBuffer {
  return new Uint8Array(bytes).buffer; // never slice(): that of a Buffer is no copy
}
