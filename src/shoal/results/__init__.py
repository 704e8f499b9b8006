"""Results: records on disk, DomainBed output, selection and aggregation; free of torch."""
