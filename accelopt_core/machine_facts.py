"""The numbers of one machine that prompts teach with, as the templates name them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MachineFacts:
    """Per NeuronCore; rates are what a kernel can reach, not what a data sheet adds up."""

    name: str
    partitions: int
    sbuf_bytes_per_partition: int
    psum_banks: int
    psum_bank_bytes: int
    matmul_columns: int
    """Longest free axis of one matmul's moving operand."""
    tensor_ghz: float
    vector_ghz: float
    scalar_ghz: float
    tflops_bf16: float
    tflops_fp32: float
    table_load_us: float
    dma_engines: int
    dma_gb_per_s: float
    dma_latency_us: float
    dma_poor_row_bytes: int
    dma_good_row_bytes: int
    dma_full_row_bytes: int
    pe_warmup_us: float
    pe_cold_factor: float


TRN2 = MachineFacts(
    name="Trainium2",
    # Shapes, memories and clocks: AWS Neuron SDK 2.32, nki/guides/architecture/trainium2_arch.rst.
    partitions=128,
    # Usable SBUF: nkipy HardwareConstants.h (224 KiB less what the runtime reserves).
    sbuf_bytes_per_partition=212_984,
    psum_banks=8,
    psum_bank_bytes=2048,
    matmul_columns=512,
    tensor_ghz=2.4,
    vector_ghz=0.96,
    scalar_ghz=1.2,
    tflops_bf16=79.0,
    tflops_fp32=20.0,
    # Profiler timeline in the same SDK's DMA and activation guides: 1.28 to 1.29 µs.
    table_load_us=1.3,
    # nki/deep-dives/nki-dma-bandwidth-guide.rst: 16 engines, 23 B/ns each; rows below 256 B are overhead,
    # 2 KiB is the advised minimum, 4 KiB saturates. Latency: trigger to consumer, nki-dma-overview.rst.
    dma_engines=16,
    dma_gb_per_s=370.0,
    dma_latency_us=2.0,
    dma_poor_row_bytes=512,
    dma_good_row_bytes=2048,
    dma_full_row_bytes=4096,
    # tools/neuron-explorer/overview-summary-page.rst: about half speed for about 3 µs.
    pe_warmup_us=3.0,
    pe_cold_factor=2.0,
)
